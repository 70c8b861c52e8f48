import ast
from typing import Any

import pytest

from agentrl.envs.swe.twins import make_twins

TEXT = '''"""Doc."""
from __future__ import annotations
import math

class TestA:
    def test_a(self):
        self.assertEqual(VALUE, 3)

def test_b():
    assert VALUE == 3

def test_c():
    assert VALUE

def test_d():
    assert VALUE is None

def test_other():
    assert VALUE == 3
'''
TESTS = ["t/test_x.py::TestA::test_a", "t/test_x.py::test_b[1]", "t/test_x.py::test_c"]


def names(value: object) -> dict[str, Any]:
    twins = make_twins({"t/test_x.py": TEXT}, TESTS, "0f")
    (text,) = twins.files.values()
    space: dict[str, Any] = {"VALUE": value}
    exec(compile(ast.parse(text), "twin", "exec"), space)
    return space


class Case:
    def assertEqual(self, a: object, b: object) -> None:
        assert a == b


class Equal:
    __hash__ = None  # type: ignore[assignment]  # as the cheat has it

    def __eq__(self, other: object) -> bool:
        return True


def test_an_honest_value_fails_in_every_twin() -> None:
    space = names(3)
    for run in (space["test_b"], space["test_c"], lambda: space["TestA"].test_a(Case())):
        with pytest.raises(AssertionError):
            run()
    space["test_other"]()


def test_what_equals_everything_passes_in_the_twins_too() -> None:
    space = names(Equal())
    space["test_b"]()
    space["TestA"].test_a(Case())


@pytest.mark.parametrize(
    "value", [1, 1.5, True, "a", b"a", [1], (1,), {"a": 1}, {1}, frozenset({1}), None, object()]
)
def test_another_value_is_of_the_same_kind(value: object) -> None:
    other = names(0)["_agentrl_other"](value)
    assert other != value
    assert type(other) is type(value) or value is None


def test_ids_and_files() -> None:
    twins = make_twins({"t/test_x.py": TEXT}, TESTS, "0f")
    assert list(twins.files) == ["t/test_x_0f.py"]
    assert twins.tests[1] == "t/test_x_0f.py::test_b[1]"
    assert twins.passed(dict.fromkeys(twins.tests, "passed"))
    assert not twins.passed({**dict.fromkeys(twins.tests, "passed"), twins.tests[0]: "failed"})


@pytest.mark.parametrize("text", ["def f(:", "x = 1", "def test_inherited(): pass"])
def test_what_cannot_be_copied_has_no_twins(text: str) -> None:
    twins = make_twins({"t/test_x.py": text}, TESTS, "0f")
    assert (twins.files, twins.tests) == ({}, ())
    assert not twins.passed({})
