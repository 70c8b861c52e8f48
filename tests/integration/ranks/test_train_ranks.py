"""A whole run on two ranks: it learns, is saved, goes on with one and with three, and exports."""

# pyright: reportUnknownMemberType=false
# transformers is typed in part only.

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import orjson
import psutil
import pytest
from transformers import AutoModelForCausalLM

from agentrl.trainer.checkpoint import latest_valid
from tests.signals import IN_BACKGROUND, IN_FOREGROUND

ENV = f"{Path(__file__).parents[2] / 'e2e' / 'digits_env.py'}:Digits"
START = [
    *("--env", ENV, "--name", "two", "--trainer.ranks", "2", "--checkpoint.every", "1"),
    *("--rollout.tasks-per-step", "5", "--group-size", "4", "--rollout.max-new-tokens", "12"),
    *("--checkpoint.background", "--checkpoint.best", "reward", "--checkpoint.keep", "1"),
]


def agentrl(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", "train", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "runs" / "two" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_goes_on_with_any_number_of_ranks(tmp_path: Path) -> None:
    agentrl(tmp_path, *START, "--steps", "3")
    agentrl(tmp_path, "--resume", "two", "--trainer.ranks", "1", "--steps", "4")
    agentrl(tmp_path, "--resume", "two", "--trainer.ranks", "3", "--steps", "5")
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["updates"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["verified"] == 1 for line in lines)
    # The engine samples with what the ranks wrote to it.
    assert all(line["gap_max"] < 1e-3 for line in lines)
    kept = {path.name for path in (tmp_path / "runs/two/checkpoints").iterdir()}
    best = max(lines, key=lambda line: (line["reward"], line["step"]))["step"]
    assert kept == {f"step-{best:06.0f}", "step-000005"}
    shards = tmp_path / "runs/two/checkpoints/step-000005/weights"
    assert len(list(shards.glob("*.distcp"))) == 3
    AutoModelForCausalLM.from_pretrained(tmp_path / "runs/two/model")


def test_heads_are_counted_before_the_run(tiny_folder: Path) -> None:
    command = ["train", "--env", "calculator", "--model", str(tiny_folder), "--dry-run"]
    command += ["--trainer.ranks", "5", "--trainer.sequence-parallel", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "trainer.sequence_parallel: got 5, but the model has 4 attention heads" in done.stderr


@pytest.mark.parametrize(
    ("blow", "how"),
    [
        pytest.param(signal.SIGKILL, IN_FOREGROUND, marks=pytest.mark.nightly),
        pytest.param(signal.SIGINT, IN_FOREGROUND, marks=pytest.mark.nightly),
        (signal.SIGTERM, IN_BACKGROUND),
    ],
)
def test_ranks_end_with_the_run(tmp_path: Path, blow: signal.Signals, how: Sequence[str]) -> None:
    command = [*how, sys.executable, "-m", "agentrl", "train", *START, "--steps", "500"]
    run = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    events = tmp_path / "runs" / "two" / "metrics.jsonl"
    while not (events.exists() and events.read_bytes()):
        assert time.monotonic() < deadline
        assert run.poll() is None
        time.sleep(0.2)
    below = psutil.Process(run.pid).children(recursive=True)
    assert len(below) >= 3
    if blow == signal.SIGTERM:  # a scheduler sends it to all processes of a job
        for process in below:
            process.send_signal(blow)
    os.kill(run.pid, blow)
    run.wait(60)
    if blow != signal.SIGKILL:
        done = [orjson.loads(line)["step"] for line in events.read_bytes().splitlines()][-1]
        kept = latest_valid(tmp_path / "runs/two/checkpoints")
        assert kept is not None
        assert kept.name == f"step-{done:06}"
    _, left = psutil.wait_procs(below, timeout=20)
    assert [p.name() for p in left if "torch_shm" not in p.name()] == []
    assert orjson.loads(events.read_bytes().splitlines()[0])["step"] == 1
