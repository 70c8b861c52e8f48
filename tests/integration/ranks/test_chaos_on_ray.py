"""A rank in a cluster dies or stands still: one sentence, nothing left, and the run goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agentrl.run_dir import read_episodes
from agentrl.testing.local_ray import LocalRay

ENV = f"{Path(__file__).parents[2] / 'e2e' / 'digits_env.py'}:Digits"
STEPS, GROUPS, MEMBERS = 6, 4, 4


def actors() -> list[psutil.Process]:
    """The processes of ranks."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.cmdline()[:1] and "ray::_Actor" in process.cmdline()[0]:
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


@pytest.mark.parametrize(
    ("blow", "said"),
    [
        (signal.SIGKILL, r"is gone"),
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
    files = sorted((tmp_path / "runs" / "r" / "episodes").glob("step-*.parquet"))
    trained = [(e.group, e.member) for file in files for e in read_episodes(file) if e.valid]
    assert len(trained) == len(set(trained)) == STEPS * GROUPS * MEMBERS
    assert not actors()
