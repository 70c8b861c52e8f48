"""A rank, a player or the driver dies or stands still: what is said, trained on and left."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from agentrl.run_dir import read_episodes
from agentrl.testing.local_ray import LocalRay
from agentrl.types import Episode

ENV = f"{Path(__file__).parents[2] / 'e2e' / 'digits_env.py'}:Digits"
STEPS, GROUPS, MEMBERS = 6, 4, 4


def actors(kind: str = "_Actor", without: Sequence[int] = ()) -> list[psutil.Process]:
    """The processes of ranks, or of players; without those."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid not in without
                and process.cmdline()[:1]
                and f"ray::{kind}" in process.cmdline()[0]
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def num_steps(folder: Path) -> int:
    file = folder / "runs" / "r" / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def train(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "agentrl", "train", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_steps(folder: Path, most: int, run: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 100
    while num_steps(folder) < most and run.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.05)


def episodes(folder: Path) -> list[Episode]:
    files = sorted((folder / "runs" / "r" / "episodes").glob("step-*.parquet"))
    return [episode for file in files for episode in read_episodes(file)]


def play_on(cluster: LocalRay) -> list[str]:
    return [
        *("--env", ENV, "--name", "r", "--steps", str(STEPS)),
        *("--executor", "ray", "--ray-address", cluster.address),
        *("--rollout.tasks-per-step", str(GROUPS), "--group-size", str(MEMBERS)),
        *("--rollout.max-new-tokens", "8", "--fault.deadline-s", "2"),
    ]


@pytest.mark.parametrize(
    ("blow", "said"),
    [
        pytest.param(signal.SIGKILL, r"is gone", marks=pytest.mark.nightly),
        (signal.SIGSTOP, "stood still for 2 s and was killed"),
    ],
)
def test_a_rank_that_is_struck_ends_the_run_which_goes_on_from_its_checkpoint(
    tmp_path: Path, two_raylets: LocalRay, blow: signal.Signals, said: str
) -> None:
    start = [
        *("--env", ENV, "--name", "r", "--steps", str(STEPS), "--checkpoint.every", "1"),
        *("--executor", "ray", "--ray-address", two_raylets.address, "--trainer.ranks", "2"),
        *("--rollout.tasks-per-step", str(GROUPS), "--group-size", str(MEMBERS)),
        *("--rollout.max-new-tokens", "8", "--fault.deadline-s", "2", "--ray.players", "0"),
    ]
    run = train(tmp_path, *start)
    wait_for_steps(tmp_path, 2, run)
    os.kill(actors()[-1].pid, blow)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "of 2 ended during" in err
    assert said in err
    assert "raylet" not in out
    assert not actors()
    resumed = train(tmp_path, "--resume", "r")
    out, err = resumed.communicate(timeout=100)
    assert resumed.returncode == 0, err
    trained = [(e.group, e.member) for e in episodes(tmp_path) if e.valid]
    assert len(trained) == len(set(trained)) == STEPS * GROUPS * MEMBERS
    assert not actors()


@pytest.mark.nightly
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_player_that_is_struck_costs_attempts_alone(
    tmp_path: Path, two_raylets: LocalRay, blow: signal.Signals
) -> None:
    others = [process.pid for kind in ("_Actor", "_Player") for process in actors(kind)]
    run = train(tmp_path, *play_on(two_raylets))
    wait_for_steps(tmp_path, 2, run)
    os.kill(actors("_Player", others)[-1].pid, blow)
    _, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    [said] = re.findall(r"^player \d \(process .* ended: .*; (\d+) episodes were there$", err, re.M)
    lost = [e for e in episodes(tmp_path) if not e.valid]
    assert len(lost) == int(said)
    trained = [(e.group, e.member) for e in episodes(tmp_path) if e.valid]
    assert len(trained) == len(set(trained)) == STEPS * GROUPS * MEMBERS
    assert not actors("_Player", others)


@pytest.mark.nightly
def test_players_end_with_a_driver_that_is_killed(tmp_path: Path, two_raylets: LocalRay) -> None:
    others = [process.pid for kind in ("_Actor", "_Player") for process in actors(kind)]
    run = train(tmp_path, *play_on(two_raylets))
    wait_for_steps(tmp_path, 1, run)
    assert len(actors("_Player", others)) == 2
    run.kill()
    run.communicate()
    end = time.monotonic() + 30
    while actors("_Player", others) or actors(without=others):
        assert time.monotonic() < end
        time.sleep(0.1)
