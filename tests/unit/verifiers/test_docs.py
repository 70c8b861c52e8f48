"""The code in docs/verifiers.md runs, and its lists are what ExactNumber does."""

import re
from pathlib import Path

import pytest

from agentrl.types import Task
from agentrl.verifiers import ExactNumber

TEXT = (Path(__file__).parents[3] / "docs/verifiers.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_code_runs(code: str) -> None:
    exec(compile(code, "docs/verifiers.md", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize(
    ("row", "reference", "expected"),
    [
        ("accepted for 1234.5", 1234.5, True),
        ("accepted for 42", 42, True),
        ("not accepted", 42, False),
    ],
)
def test_listed_forms(row: str, reference: float, expected: bool) -> None:
    line = next(line for line in TEXT.splitlines() if line.startswith(f"| {row} |"))
    forms = re.findall(r"`([^`]+)`", line)
    assert len(forms) >= 4
    for form in forms:
        assert ExactNumber().score(Task(prompt="?", answer=reference), form) is expected, form
