"""The command that `algorithm show NAME` prints trains two steps."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.engine.local.models.resolve import resolve_model
from agentrl.trainer.algorithms.catalogue import AlgorithmEntry, entries

ENTRIES = {f"{e.kind} {e.name}": e for e in entries()}
IN_CI = ("estimator gigpo", "estimator vapo", "loss gspo", "estimator remax")
MORE_THAN_A_PAIR = ("dapo", "pf_ppo", "vapo")
"""Algorithms that do more than to name an estimator and a loss."""
UNMET = {"score parts": "needs a sandbox"}
QUICK = ["--warm-start.updates", "10", "--warm-start.passes", "1", "--rollout.max-turns", "3"]


def cases() -> list[object]:
    kept = [e for e in ENTRIES.values() if not set(e.needs) & UNMET.keys()]
    marks = {name: () if name in IN_CI else (pytest.mark.nightly,) for name in ENTRIES}
    return [
        pytest.param(e, id=e.name, marks=marks[f"{e.kind} {e.name}"])
        for e in kept
        if e.kind != "algorithm" or e.name in MORE_THAN_A_PAIR
    ]


@pytest.mark.parametrize("entry", cases())
@pytest.mark.timeout(300)
def test_its_command_trains_two_steps(entry: AlgorithmEntry, tmp_path: Path) -> None:
    if "teacher" in entry.needs:
        shutil.copytree(resolve_model("tiny", seed=1), tmp_path / "runs/teacher/model")
    words = entry.command.split()
    command = [sys.executable, "-m", *words, *QUICK, "--name", "run", "--threads", "1"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["verified"] == 1 for step in steps)
