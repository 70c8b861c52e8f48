"""The classifier finds decoys that show, and guesses where nothing does."""

import random

import pytest

from tests.contract.sandbox.tell_apart import tell_apart

_RNG = random.Random(4)
_VALUES = [(_RNG.randint(10, 999), _RNG.randint(10, 999)) for _ in range(120)]
_REAL = [f"def test_{i}():\n    assert f({i}) == {a}\n" for i, (a, _) in enumerate(_VALUES)]
_SAME_KIND = [f"def test_{i}():\n    assert f({i}) == {b}\n" for i, (_, b) in enumerate(_VALUES)]


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        ("== ", "== _agentrl_other("),
        ("\n", "  # decoy\n"),
        ("== ", "== -"),
        ("    assert", "    raise AssertionError\n    assert"),
        ("def test_", "def test_decoy_"),
    ],
    ids=["helper", "comment", "sign", "failure", "name"],
)
def test_it_finds_decoys_that_show(value: str, instead: str) -> None:
    assert tell_apart(_REAL, [text.replace(value, instead, 1) for text in _REAL]) > 0.95


def test_it_finds_a_value_that_is_always_the_same() -> None:
    decoys = [
        text.replace(f"== {a}\n", "== 424242\n")
        for text, (a, _) in zip(_REAL, _VALUES, strict=True)
    ]
    assert tell_apart(_REAL, decoys) > 0.95


def test_it_finds_real_values_that_are_rounder() -> None:
    real = [f"assert f({i}) == {a * 10}\n" for i, (a, _) in enumerate(_VALUES)]
    decoys = [f"assert f({i}) == {a * 10 - 1}\n" for i, (a, _) in enumerate(_VALUES)]
    assert tell_apart(real, decoys) > 0.95


def test_it_guesses_where_both_are_drawn_alike() -> None:
    found = [tell_apart(_REAL, _SAME_KIND, seed=seed) for seed in range(3)]
    assert 0.38 < sum(found) / len(found) < 0.62


def test_it_guesses_where_both_are_the_same() -> None:
    assert tell_apart(_REAL, _REAL) == 0.5


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4 pairs"):
        tell_apart(_REAL[:3], _REAL[:3])
