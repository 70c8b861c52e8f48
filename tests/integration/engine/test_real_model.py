"""Two real steps of a real language model, from its package to the last metric."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

AGENTRL = Path(sys.executable).with_name("agentrl")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_smollm2_takes_two_steps(tmp_path: Path) -> None:
    flags = ["--env", "calculator", "--model", "smollm2-135m", "--steps", "2", "--threads", "1"]
    flags += ["--tasks-per-step", "2", "--group-size", "2", "--rollout.max-new-tokens", "8"]
    flags += ["--rollout.max-turns", "2"]
    done = subprocess.run(
        [AGENTRL, "train", *flags, "--name", "real", "--runs-dir", tmp_path],
        env={**os.environ, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "real" / "metrics.jsonl").read_bytes().splitlines()
    steps = [orjson.loads(line) for line in lines]
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert step["verified"] == 1.0
        assert step["num_trained"] > 0
        assert step["gap_mean"] < 1e-5
        assert step["gap_max"] < 1e-3
    assert (tmp_path / "real" / "model" / "model.safetensors").exists()
    shutil.rmtree(tmp_path / "real")  # half a gigabyte of weights
