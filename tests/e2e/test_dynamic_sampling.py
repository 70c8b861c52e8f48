"""Runs that choose what they train on: groups replaced, members filtered, groups of one."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import main
from agentrl.run_dir import read_episodes
from agentrl.types import Episode

pytestmark = pytest.mark.timeout(180)  # the first run of a process loads torch
ENV = f"{Path(__file__).parent / 'coin_env.py'}:Coin"
FLAGS = [
    *("train", "--env", ENV, "--threads", "1", "--checkpoint.every", "1", "--lr", "1e-3"),
    *("--rollout.tasks-per-step", "3", "--rollout.max-new-tokens", "3"),
]
DAPO = [
    *FLAGS,
    "--group-size",
    "2",
    "--algorithm",
    "dapo",
    "--rollout.overlong-buffer",
    "0",
    "--deterministic",
]


def play(root: Path, *flags: str) -> Path:
    assert main([*flags, "--runs-dir", str(root), "--name", "run"]) == 0
    return root / "run"


def metrics(run: Path) -> list[dict[str, Any]]:
    """Without what a clock measured."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.endswith(("_s", "time"))} for line in lines]


def content(episodes: list[Episode]) -> list[tuple[object, ...]]:
    return [
        (e.id, e.task.id, e.dropped, e.reward, [s.digest for s in e.segments]) for e in episodes
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(tmp_path_factory.mktemp("whole"), *DAPO, "--steps", "4")


def test_what_is_drawn_kept_and_dropped_is_counted_and_written(whole: Path) -> None:
    steps = metrics(whole)
    episodes = read_episodes(whole / "episodes")
    assert sum(step["groups/drawn"] for step in steps) > 12
    for number, step in enumerate(steps, start=1):
        own = [e for e in episodes if e.id.startswith(f"train-s{number}-")]
        kept = [e for e in own if not e.dropped]
        drawn = {e.group % 10**9 for e in own}
        assert drawn == {*range(int(step["groups/drawn"]))}
        assert 3 <= len(drawn) <= 9
        assert len({e.group for e in kept}) == step["groups/kept"]
        assert step["groups/kept"] == 3 or len(drawn) == 9
        taught = {e.group for e in own if len({m.reward for m in own if m.group == e.group}) > 1}
        assert {e.group for e in kept} == taught
        assert {e.dropped for e in own} <= {"", "flat"}
        assert step["trained_tokens"] == sum(s.num_trained for e in kept for s in e.segments)
        assert step["num_trained"] == step["trained_tokens"]
        assert step["reward"] == pytest.approx(sum(e.reward for e in own) / len(own))


def test_each_task_comes_once_an_epoch(whole: Path) -> None:
    """In the order in which they were drawn, over the steps."""
    groups = {e.group: e.task.id for e in read_episodes(whole / "episodes")}
    drawn = [groups[group] for group in sorted(groups)]
    for first in range(0, len(drawn) - 9, 10):
        assert len({*drawn[first : first + 10]}) == 10


def test_a_resumed_run_goes_on_behind_the_last_task_with_the_same_bits(
    whole: Path, tmp_path: Path
) -> None:
    play(tmp_path, *DAPO, "--steps", "2")
    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "4"]) == 0
    run = tmp_path / "run"
    assert content(read_episodes(run / "episodes")) == content(read_episodes(whole / "episodes"))
    same = ("reward", "loss", "grad_norm", "groups/drawn", "groups/kept", "length/dropped")
    for resumed, step in zip(metrics(run), metrics(whole), strict=True):
        assert {key: resumed[key] for key in same} == {key: step[key] for key in same}


def test_a_filter_trains_on_the_best_and_the_worst_of_each_group(tmp_path: Path) -> None:
    flags = ["--algorithm", "pf_ppo", "--group-size", "4", "--steps", "2"]
    run = play(tmp_path, *FLAGS, *flags)
    episodes = read_episodes(run / "episodes")
    groups = {e.group: [m for m in episodes if m.group == e.group] for e in episodes}
    assert {len(members) for members in groups.values()} == {4}
    for members in groups.values():
        kept = sorted(e.reward for e in members if not e.dropped)
        rewards = sorted(e.reward for e in members)
        assert kept == [rewards[0], rewards[-1]]
        assert {e.dropped for e in members} == {"", "filter"}
    for step in metrics(run):
        assert step["dropped/filter"] == 2 * len(groups) / 2
        assert step["num_trained"] == step["trained_tokens"] > 0
        assert "value_loss" in step


@pytest.mark.parametrize("algorithm", ["reinforce", "ppo"])
def test_a_group_of_one_is_enough_where_nobody_compares(algorithm: str, tmp_path: Path) -> None:
    flags = ["--algorithm", algorithm, "--group-size", "1", "--steps", "2"]
    run = play(tmp_path, *FLAGS, *flags)
    for step in metrics(run):
        assert step["episodes"] == 3
        assert step["num_trained"] > 0
        assert step["grad_norm"] > 0
