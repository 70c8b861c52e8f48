"""The command that `algorithm show NAME` prints trains two steps."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.engine.local.models.resolve import resolve_model
from agentrl.trainer.algorithms.catalogue import AlgorithmEntry, entries
from tests.preloaded import Preloaded

ENTRIES = {f"{e.kind} {e.name}": e for e in entries()}
IN_CI = ("estimator gigpo", "algorithm vapo", "loss gspo", "estimator remax")
RUNS_CODE = {"score parts", "cost"}
"""Needs that an environment with a sandbox meets."""
QUICK = ["--warm-start.updates", "10", "--warm-start.passes", "1", "--rollout.max-turns", "3"]


def cases() -> list[object]:
    def marks(name: str, entry: AlgorithmEntry) -> Iterator[pytest.MarkDecorator]:
        if name not in IN_CI:
            yield pytest.mark.nightly
        if set(entry.needs) & RUNS_CODE:
            yield pytest.mark.sandbox

    return [pytest.param(e, id=name, marks=[*marks(name, e)]) for name, e in ENTRIES.items()]


@pytest.mark.parametrize("entry", cases())
@pytest.mark.timeout(300)
def test_its_command_trains_two_steps(
    entry: AlgorithmEntry, tmp_path: Path, preloaded: Preloaded
) -> None:
    if "teacher" in entry.needs:
        shutil.copytree(resolve_model("tiny", seed=1), tmp_path / "runs/teacher/model")
    command = [*entry.command.split(), *QUICK, "--name", "run", "--threads", "1"]
    done = preloaded.run(command[1:], tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["verified"] == 1 for step in steps)
