import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ToolError
from agentrl.tools.arithmetic import MAX_CHARS, TooCostly, evaluate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("47 + 85", "132"),
        (" -3*-(4)\t", "12"),
        ("2**10", "1024"),
        ("7 // 2 - 7 % 4", "0"),
        ("1/4", "0.25"),
        ("10/5", "2"),
        ("2**-1", "0.5"),
        (".5 + 1.", "1.5"),
        ("+-+1", "-1"),
        ("10**50", str(10**50)),
        ("(" * 120 + "1" + ")" * 120, "1"),
    ],
)
def test_values(expression: str, value: str) -> None:
    assert evaluate(expression) == value
    assert evaluate(expression, max_bits=512) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("", "1 +", "(1", "1)", "a", "__import__('os')", "1;2", "1,2", "1 < 2", "not 1", "[1]"),
        *("1e5", "1(2)", "1 2", "1\n+1", "\uff11+1", "()", "5 / 0", "5 % 0", "0**-1", "(-8)**.5"),
        *("9.**999", "1//0.0", "1" * (MAX_CHARS + 1), "-" * 200 + "1", "10**1001"),
    ],
)
def test_everything_else_is_an_error_for_the_model(expression: str) -> None:
    with pytest.raises(ToolError) as caught:
        evaluate(expression)
    assert len(str(caught.value)) < 400
    with pytest.raises((ToolError, TooCostly)):
        evaluate(expression, max_bits=512)


@pytest.mark.parametrize(
    "expression", ["9**9**9", "2**600", "(2**500)*(2**500)", "9**99999999999", "-9**9**9"]
)
def test_what_could_be_large_is_not_begun(expression: str) -> None:
    start = time.thread_time()
    with pytest.raises(TooCostly):
        evaluate(expression, max_bits=512)
    assert time.thread_time() - start < 0.1


@given(st.text(alphabet="0123456789+-*/%(). ", max_size=MAX_CHARS))
def test_bounded_evaluation_is_total_and_quick(expression: str) -> None:
    start = time.thread_time()
    with contextlib.suppress(ToolError, TooCostly):
        assert len(evaluate(expression, max_bits=512)) < 400
    assert time.thread_time() - start < 0.1


@given(st.integers(-999, 999), st.integers(-999, 999), st.sampled_from("+-*"))
def test_integers_are_exact(a: int, b: int, operator: str) -> None:
    expected = {"+": a + b, "-": a - b, "*": a * b}[operator]
    assert evaluate(f"({a}) {operator} ({b})", max_bits=512) == str(expected)
