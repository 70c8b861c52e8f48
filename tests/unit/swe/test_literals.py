"""What a comparison saw, as text: equal values have one, whatever shows them."""

import pytest

from agentrl.envs.swe.verdict import is_same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[1, 0.30000000000000004]", "[1, 0.3]"),
        ("{1, 0.30000000000000004}", "{1, 0.3}"),
        ("1e-17", "0"),
    ],
)
def test_rounding_makes_no_other_text(one: str, other: str) -> None:
    assert is_same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("100001", "100000"),
        ("[0.1]", "(0.1,)"),
        ("{0.1, 0.2}", "{0.1}"),
        ("?", "1"),
        # What only who forges a report writes.
        ("{[]: 1}", "{1: 1}"),
        ("9" * 400, "0.5"),
        ("[" * 900, "[1]"),
        ("-" * 900 + "1", "0.5"),
    ],
)
def test_other_values_and_texts_that_are_none_are_not_the_same(one: str, other: str) -> None:
    assert not is_same(one, other)
    assert not is_same(other, one)
