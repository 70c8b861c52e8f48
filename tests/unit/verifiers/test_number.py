"""ExactNumber: what counts as the number, what is a near miss, and that no text can hurt."""

import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.types import Task
from agentrl.verifiers import ExactNumber
from agentrl.verifiers.compare import parse_number


def accepts(answer: object, reference: object, tolerance: float = 0.0) -> bool:
    return ExactNumber(tolerance).score(Task(prompt="?", answer=reference), answer)


MUST_ACCEPT = [
    ("42", 42),
    (" 42\n", 42),
    ("+42", 42),
    ("-42", -42),
    ("042", 42),
    ("42.", 42),
    ("42.0", 42),
    ("1,234", 1234),
    ("1,234,567.5", 1234567.5),
    ("1234567.50", 1234567.5),
    (".5", 0.5),
    ("0.5", Fraction(1, 2)),
    ("1/2", 0.5),
    ("2/4", "1/2"),
    ("-1/2", -0.5),
    ("5e-1", 0.5),
    ("1E3", 1000),
    ("1e+3", "1,000"),
    ("-0", 0),
    ("0.1", 0.1),
    ("0.30", "0.3"),
    (42, 42),
    (42.0, 42),
    (0.1, "0.1"),
    (Decimal("4.20"), 4.2),
    (np.int64(7), 7),
    (np.float64(0.1), 0.1),
    ("9" * 900, int("9" * 900)),
    ("123456789012345678901234567890", 123456789012345678901234567890),
]

MUST_REJECT = [
    ("", 0),
    (" ", 0),
    ("0,123", 123),
    ("00,123", 123),
    ("-0,123", -123),
    ("012,345", 12345),
    ("0,000", 0),
    ("0,123,456.5", 123456.5),
    (".", 0),
    ("-", 0),
    ("43", 42),
    ("-42", 42),
    ("4 2", 42),
    ("42 42", 42),
    ("41 or 42", 42),
    ("42 apples", 42),
    ("The answer is 42", 42),
    ("**42**", 42),
    ("\\boxed{42}", 42),
    ("42.5.", 42.5),
    ("42..", 42),
    ("42!", 42),
    ("x=42", 42),
    ("$42", 42),
    ("50%", 0.5),
    ("50%", 50),
    ("2 2/3", Fraction(8, 3)),
    ("2 2/3", 2),
    ("1/0", 0),
    ("1/2/3", Fraction(1, 6)),
    ("1/2.0", 0.5),
    ("0.33", Fraction(1, 3)),
    ("0.3333333333333333", Fraction(1, 3)),
    ("1,23", 123),
    ("12,34,567", 1234567),
    ("1234,567", 1234567),
    (",123", 123),
    ("1.234,5", 1234.5),
    ("1_000", 1000),
    ("0x2A", 42),
    ("0b1", 1),
    ("1e", 1),
    ("e3", 1000),
    ("1e1.0", 10),
    ("--42", -42),
    ("+-42", -42),
    ("(42)", 42),
    ("12:00", 12),
    ("1±1", 1),
    ("10^2", 100),
    ("10**2", 100),
    ("6*7", 42),
    ("1;", 1),
    ("nan", 0),
    ("inf", 10**400),
    ("Infinity", 1),
    ("\u0664\u0662", 42),
    ("\uff14\uff12", 42),
    ("4²", 16),
    ("42\x00", 42),
    ("42\nignore that", 42),
    ("1e999999999", 10),
    ("1e1001", 10**1001),
    ("1e-999999999", 0),
    ("9" * 1001, int("9" * 1001)),
    (None, 0),
    (True, 1),
    (False, 0),
    (float("nan"), 0),
    (float("inf"), 1),
    (Decimal("1e999999999"), 1),
    (Decimal("NaN"), 0),
    ([42], 42),
    ({"answer": 42}, 42),
    (b"42", 42),
    (42 + 0j, 42),
]


@pytest.mark.parametrize(("answer", "reference"), MUST_ACCEPT)
def test_must_accept(answer: object, reference: object) -> None:
    assert accepts(answer, reference) is True


@pytest.mark.parametrize(("answer", "reference"), MUST_REJECT)
def test_must_reject(answer: object, reference: object) -> None:
    assert accepts(answer, reference) is False


@pytest.mark.parametrize(
    ("answer", "reference", "tolerance", "expected"),
    [
        ("0.33", Fraction(1, 3), 0.01, True),
        ("0.32", Fraction(1, 3), 0.01, False),
        ("1.1", 1, 0.1, True),
        ("1.1000000000000000000001", 1, 0.1, False),
        ("0.9", 1, 0.1, True),
        ("-1", 1, 0.1, False),
        ("1e1000", 1, 1e300, False),
    ],
)
def test_tolerance_is_an_absolute_and_exact_difference(
    answer: str, reference: object, tolerance: float, expected: bool
) -> None:
    assert accepts(answer, reference, tolerance) is expected


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf")])
def test_tolerance_must_be_a_number_from_zero(tolerance: float) -> None:
    with pytest.raises(ConfigError, match="expected a finite number from 0"):
        ExactNumber(tolerance)


@pytest.mark.parametrize("reference", [None, "forty-two", True, [1], float("nan"), "1e2000"])
def test_reference_that_is_no_number_is_an_error_not_a_zero(reference: object) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        accepts("42", reference)


@given(st.integers())
def test_every_integer_reads_back(number: int) -> None:
    assert accepts(str(number), number)
    assert accepts(f"{number:,}", number)
    assert not accepts(str(number), number + 1)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_reads_back(number: float) -> None:
    assert accepts(repr(number), number)


@given(st.text(alphabet="0123456789.,/eE+- ", max_size=40) | st.text(max_size=40))
def test_total_and_agrees_with_python_where_it_accepts(text: str) -> None:
    found = parse_number(text)
    if found is not None:
        assert found == Fraction(text.strip().replace(",", ""))


@pytest.mark.parametrize(
    "text", ["1e9999", "9" * 1000, "1" + ",000" * 249, "1/" + "3" * 998, "1e1000", "1," * 5000]
)
def test_worst_texts_are_cheap(text: str) -> None:
    start = time.thread_time()
    for _ in range(20):
        accepts(text, 42, 1e-300)
    assert time.thread_time() - start < 0.5
