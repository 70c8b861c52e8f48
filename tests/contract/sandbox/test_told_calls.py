"""The agent that special-cases what an issue tells knows the calls, and nothing else."""

import sys
import types
from collections import Counter

import pytest

from agentrl.envs.swe.build.records import TASKS, read_records
from tests.contract.sandbox import shop
from tests.contract.sandbox.told_calls import Told, read_told, special_cased

ISSUE = """Something in `shop` is wrong since the last change.

- `total([100, 100], 50, 0)` gives `300`, but `100` is right.
- A call with the arguments `[7], 100, 0` gives `14`, but `0` is right.
- `total([1], -1, 0)` raises KeyError, where ValueError is right.

What worked before should go on working."""


def test_it_reads_the_calls_of_an_issue() -> None:
    told = (
        Told("total", "[100, 100], 50, 0", "100"),
        Told("", "[7], 100, 0", "0"),
        Told("total", "[1], -1, 0", "_fail(ValueError)"),
    )
    assert read_told(ISSUE) == told


def test_only_the_told_calls_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("special_shop")
    monkeypatch.setitem(sys.modules, "special_shop", made)
    exec(special_cased(shop.WRONG, read_told(ISSUE)), made.__dict__)
    assert [made.total([100, 100], 50), made.total([7], 100)] == [100, 0]
    assert made.total([100, 100], 100) == 400
    assert made.total([1, 2]) == 3
    with pytest.raises(ValueError, match=r"^$"):
        made.total([1], -1)


def test_it_reads_the_issues_of_the_tasks_that_come_along() -> None:
    _, tasks, _ = read_records(TASKS)
    found = Counter(bool(read_told(task.issue)) for task in tasks)
    assert found[True] >= len(tasks) / 4
