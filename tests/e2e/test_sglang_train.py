"""Training with a real SGLang server from the command line, and what is left of it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(400)]

SMALL = [
    "--rollout.tasks-per-step", "4", "--group-size", "4", "--warm-start.updates", "30",
]  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agentrl", *arguments]


def servers(folder: Path) -> list[int]:
    """Processes of servers that were started from this test's folder."""
    found: list[int] = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if process.info["cwd"] == str(folder) and "sglang" in line:
            found.append(process.pid)
    return found


def test_three_steps_are_verified_and_leave_nothing_behind(
    sglang_folder: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        command("train", "--env", "calculator", "--engine", "sglang", "--steps", "3", *SMALL),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "last"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(step["verified"] == 1.0 for step in steps)
    assert max(step["gap_mean"] for step in steps) < 1e-5
    assert sum(step["cached_tokens"] for step in steps) > 0
    (log,) = (run / "engine").glob("sglang-*.log")
    assert "ready to roll" in log.read_text()
    assert servers(tmp_path) == []


def test_a_killed_run_takes_its_server_along(sglang_folder: Path, tmp_path: Path) -> None:
    arguments = command("engine", "serve", "sglang", "--model", "tiny", "--logs", str(tmp_path))
    process = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, env=os.environ)
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert b"is served at" in lines[1]
    assert len(servers(tmp_path)) > 3  # the command, its guard, the server and its children
    process.send_signal(signal.SIGKILL)
    process.communicate()
    end = time.monotonic() + 40
    while servers(tmp_path):
        assert time.monotonic() < end, "the server outlived its owner"
        time.sleep(0.2)


def test_an_unusable_model_is_said_in_one_sentence(sglang_folder: Path, tmp_path: Path) -> None:
    flags = ["--logs", str(tmp_path), "--engine.sglang.extra-args=--no-such-flag 3"]
    done = subprocess.run(
        command("engine", "serve", "sglang", "--model", "tiny", *flags),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "the SGLang server did not start: " in done.stderr
    assert "unrecognized arguments: --no-such-flag 3" in done.stderr
    assert len(done.stderr.splitlines()) == 1
