"""Runs whose sampling goes ahead: how old what they train on is, and that nothing is lost."""

import asyncio
import base64
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import agentrl
from agentrl.envs import ToolEnv
from agentrl.errors import ConfigError
from agentrl.run_dir import read_episodes, read_lines
from agentrl.types import Score, Task

STEPS, GROUPS, MEMBERS = 6, 3, 2


class Digits(ToolEnv):
    """A turn of whatever the model says; some tasks take longer to score."""

    @classmethod
    def make_task(cls, rng: Any, split: str) -> Task:
        return Task(prompt=f"Say {int(rng.integers(10_000))}.", answer=int(rng.integers(1, 5)))

    def score(self, answer: str) -> Score:
        time.sleep(0.01 * 3 ** int(self.task.answer))  # 0.03 s to 0.8 s
        return Score(value=len(answer) % 2)


class SomeMembersAreSlow(ToolEnv):
    """One episode in eight takes 100 times as long as the others."""

    @classmethod
    def make_task(cls, rng: Any, split: str) -> Task:
        return Task(prompt=f"Say {int(rng.integers(10_000))}.")

    async def score(self, answer: str) -> Score:
        await asyncio.sleep(5.0 if self.rng.random() < 0.125 else 0.05)
        return Score(value=len(answer) % 2)


def settings(folder: Path, out: Path, **ahead: object) -> dict[str, Any]:
    return {
        "name": "ahead",
        "model": str(folder),
        "runs_dir": str(out),
        "steps": STEPS,
        "threads": 1,
        "tasks_per_step": GROUPS,
        "group_size": MEMBERS,
        "rollout": {"max_new_tokens": 12, "concurrency": 8},
        "checkpoint": {"every": 2},
        "async_": ahead,
    }


def trained_places(out: Path, steps: int = STEPS) -> Counter[tuple[int, int]]:
    """How often each member of each group was trained on."""
    files = [out / "ahead" / "episodes" / f"step-{n:06d}.parquet" for n in range(1, steps + 1)]
    return Counter((e.group, e.member) for file in files for e in read_episodes(file) if e.valid)


@pytest.mark.parametrize(
    "ahead",
    [
        {"staleness": 1},
        {"staleness": 3},
        {"staleness": 2, "partial": False},
        {"staleness": 1, "late": "mask"},
    ],
)
def test_each_group_is_trained_once_and_none_too_late(
    tiny_folder: Path, tmp_path: Path, ahead: Mapping[str, Any]
) -> None:
    with agentrl.Run(Digits, **settings(tiny_folder, tmp_path, **ahead)) as run:
        results = list(run)
    assert [result.step for result in results] == [*range(1, STEPS + 1)]
    trained = [result.metrics for result in results if "lag/max" in result.metrics]
    assert max(metrics["lag/max"] for metrics in trained) <= ahead["staleness"]
    rejected = [result.metrics.get("correct/rejected", 0.0) for result in results]
    assert any(rejected) is (ahead.get("late") == "mask")
    assert any(metrics["lag/stale"] > 0 for metrics in trained)
    gaps = [(m.get("gap/lag0", 0.0), m["gap/lag1"]) for m in trained if "gap/lag1" in m]
    assert gaps
    assert all(fresh < 1e-5 < stale for fresh, stale in gaps)
    assert all(result.stats.alarm is None for result in results)
    # Of all tokens a second: what is sampled beside an update is no faster than that.
    between = sum(r.metrics["sampled_tokens"] / r.metrics["tokens_per_s"] for r in results)
    assert between >= sum(result.metrics["step_s"] for result in results[:-1])
    places = trained_places(tmp_path)
    assert set(places.values()) == {1}
    assert len(places) == STEPS * GROUPS * MEMBERS


def test_groups_that_become_too_old_are_given_up_and_counted(
    tiny_folder: Path, tmp_path: Path
) -> None:
    given = settings(tiny_folder, tmp_path, staleness=1, late="drop")
    with agentrl.Run(Digits, **given) as run:
        results = list(run)
    dropped = [e for r in results for e in r.collected.dropped]
    assert {e.dropped for e in dropped} <= {"late"}
    assert [r.step for r in results] == [*range(1, STEPS + 1)]
    assert max(r.metrics["lag/max"] for r in results) <= 1
    ids = [e.id for r in results for e in r.collected.episodes]
    assert len({*ids}) == len(ids) == STEPS * GROUPS * MEMBERS
    assert not {*ids} & {e.id for e in dropped}
    # What was given up gave its place to groups beyond those of the last step.
    assert any(name.startswith(f"train-s{STEPS + 1}-") for name in ids)


@pytest.mark.parametrize("staleness", [0, 1])
def test_groups_beyond_need_and_stragglers_are_given_up_and_counted(
    tiny_folder: Path, tmp_path: Path, staleness: int
) -> None:
    given = settings(tiny_folder, tmp_path, staleness=staleness, late="drop")
    given["group_size"] = 4
    given["rollout"] |= {"overprovision": 1.7, "stragglers": 0.25, "concurrency": 32}
    with agentrl.Run(SomeMembersAreSlow, **given) as run:
        results = list(run)
    assert [r.step for r in results] == [*range(1, STEPS + 1)]
    assert all(r.stats.alarm is None and not r.collected.invalid for r in results)
    assert max(r.metrics.get("lag/max", 0) for r in results) <= staleness
    trained = [e.id for r in results for e in r.collected.episodes]
    stopped = [e for r in results for e in r.collected.stopped]
    lost = [*(e for r in results for e in r.collected.dropped), *stopped]
    assert len({*trained}) == len(trained)
    assert len({*trained, *(e.id for e in lost)}) == len(trained) + len(lost)
    groups = Counter(e.group for r in results for e in r.collected.episodes)
    assert len(groups) == STEPS * GROUPS
    assert min(groups.values()) >= 3, "more than a quarter of a group was left behind"
    whys = Counter(e.dropped for e in lost)
    assert {*whys} == {"late", "straggler"}
    for why, number in whys.items():
        assert sum(r.metrics.get(f"dropped/{why}", 0) for r in results) == number
    assert any("length/dropped" in r.metrics for r in results)
    kept = {e.id: e.dropped for e in read_episodes(tmp_path / "ahead" / "episodes")}
    assert {**dict.fromkeys(trained, ""), **{e.id: e.dropped for e in lost}} == kept


def test_a_run_that_was_left_and_resumed_trains_each_group_once(
    tiny_folder: Path, tmp_path: Path
) -> None:
    given = settings(tiny_folder, tmp_path, staleness=4)
    with agentrl.Run(Digits, **given) as run:
        for result in run:
            if result.step == 3:  # behind the checkpoint of step 2
                break
    with agentrl.Run(Digits, name="ahead", runs_dir=str(tmp_path), resume=True) as run:
        assert run.step == 2
        assert [result.step for result in run] == [3, 4, 5, 6]
    places = trained_places(tmp_path)
    assert set(places.values()) == {1}
    assert len(places) == STEPS * GROUPS * MEMBERS


def unpack(array: Any) -> NDArray[np.int32]:
    """An array of the log of turns."""
    return np.frombuffer(base64.b64decode(array[2]), dtype=np.int32)


class TwoTurns(Digits):
    """One more turn, so that a run can be killed between two."""

    def setup(self) -> None:
        self.is_asked = False

    def reply(self, text: str) -> str | None:
        time.sleep(0.01 * 3 ** int(self.task.answer))
        if self.is_asked:
            return None
        self.is_asked = True
        return "Again."


def test_a_killed_run_goes_on_with_its_open_episodes(tiny_folder: Path, tmp_path: Path) -> None:
    flags = f"""--model {tiny_folder} --name ahead --runs-dir {tmp_path} --steps {STEPS} --threads 1
        --tasks-per-step {GROUPS} --group-size {MEMBERS} --rollout.max-new-tokens 12
        --checkpoint.every 1 --async.staleness 4"""
    command = [sys.executable, "-m", "agentrl", "train", "--env", f"{__file__}:TwoTurns"]
    run, turns = tmp_path / "ahead", tmp_path / "ahead" / "turns.jsonl"
    process = subprocess.Popen([*command, *flags.split()], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        (run / "checkpoints" / "step-000002").exists()
        and any(f"train-s{step}-" in turns.read_text() for step in range(3, STEPS + 1))
    ):
        time.sleep(0.01)
    process.kill()
    process.wait(10)
    sampled = [line for line in read_lines(turns) if "ids_T" in line]
    env = f"{__file__}:TwoTurns"
    with agentrl.Run(env, name="ahead", runs_dir=str(tmp_path), resume=True) as resumed:
        step = resumed.step
        results = list(resumed)
    found = {
        episode.id: b"".join(segment.ids_T.tobytes() for segment in episode.segments)
        for result in results
        for episode in result.collected.episodes
    }
    told = next(line for line in read_lines(run / "events.jsonl") if line["event"] == "turns")
    assert cast(int, told["recorded"]) >= 1
    for episode, ids, versions in ((x["episode"], x["ids_T"], x["versions_T"]) for x in sampled):
        if int(str(episode).split("-")[1][1:]) > step and unpack(versions).max() <= step:
            assert unpack(ids).tobytes() in found.get(str(episode), unpack(ids).tobytes())
    lags = [r.metrics["lag/max"] for r in results if "lag/max" in r.metrics]
    assert max(lags, default=0) <= 4
    assert all(result.stats.alarm is None for result in results)
    places = trained_places(tmp_path)
    assert set(places.values()) == {1}
    assert len(places) == STEPS * GROUPS * MEMBERS
    assert not turns.exists()  # nothing is open


def test_a_signal_asks_who_waits_for_whom(
    tiny_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Asks(Digits):
        def setup(self) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)

    given = settings(tiny_folder, tmp_path)
    given["steps"] = 1
    with agentrl.Run(Asks, **given) as run:
        assert [result.step for result in run] == [1]
    told = capfd.readouterr().err
    assert "agentrl: who waits for whom:" in told
    assert re.search(r"  episode 0\.\d waits for environment, \d+\.\d s", told)
    assert re.search(r"  the trainer waits for \d more groups?, \d+\.\d s", told)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"deterministic": True}, "async.staleness: got 1 with deterministic"),
        ({"engine.share_device": True}, "async.staleness: got 1 with engine.share_device"),
        ({"engine.share_weights": True}, "async.staleness: got 1 with engine.share_weights"),
        ({"trainer": {"minibatches": 3}}, "async.staleness: got 1, expected 0 or at least 3"),
    ],
)
def test_what_cannot_run_ahead_is_refused_before_anything_loads(
    tiny_folder: Path, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    given = settings(tiny_folder, tmp_path, staleness=1) | more
    with pytest.raises(ConfigError, match=said), agentrl.Run(Digits, **given):
        pass
    assert not list(tmp_path.iterdir())


def test_it_is_refused_by_a_dry_run() -> None:
    command = "train --env calculator --async.staleness 1 --deterministic --dry-run"
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", *command.split()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "async.staleness: got 1 with deterministic" in done.stderr
