"""Training with a real vLLM server from the command line, and what is left of it."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

SMALL = [
    "--rollout.tasks-per-step", "4", "--group-size", "4", "--warm-start.updates", "30",
]  # fmt: skip


def test_steps_are_verified_by_a_server_that_ends_with_the_run(
    vllm_folder: Path, tmp_path: Path
) -> None:
    train = ["train", "--env", "calculator", "--engine", "vllm", "--steps", "3", *SMALL]
    subprocess.run(
        [sys.executable, "-m", "agentrl", *train],
        cwd=tmp_path,
        check=True,
        timeout=380,
    )
    run = tmp_path / "runs" / "last"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(step["verified"] == 1.0 for step in steps)
    assert max(step["gap_mean"] for step in steps) < 1e-5
    assert list((run / "engine").glob("vllm-*.log"))
    left = (process.info["cwd"] for process in psutil.process_iter(["cwd"]))
    assert str(tmp_path) not in left


def test_without_an_installation_a_run_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_VLLM", str(tmp_path / "none"))
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", "train", "--env", "calculator", "--engine", "vllm"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2
    assert "vLLM is not installed" in done.stderr
    assert "agentrl engine install vllm (with --cpu" in done.stderr
