import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.orchestration.evaluate import pass_at_k, pass_interval, wilson


def test_wilson_on_a_known_case() -> None:
    interval = wilson(81, 263)  # Wilson's interval for 81 of 263, worked out by hand
    assert interval.value == pytest.approx(0.30799, abs=1e-5)
    assert interval.low == pytest.approx(0.2553, abs=1e-4)
    assert interval.high == pytest.approx(0.3662, abs=1e-4)


@given(st.integers(0, 200), st.integers(0, 200))
def test_wilson_holds_its_estimate(successes: int, failures: int) -> None:
    interval = wilson(successes, successes + failures)
    assert 0.0 <= interval.low <= interval.value <= interval.high <= 1.0


@given(samples=st.integers(1, 7), data=st.data())
def test_pass_at_k_counts_subsets(samples: int, data: st.DataObject) -> None:
    wins = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    outcomes = [i < wins for i in range(samples)]
    subsets = list(itertools.combinations(outcomes, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(wins, samples, k) == pytest.approx(expected)


def test_several_samples_give_an_interval_over_tasks() -> None:
    interval = pass_interval([(4, 4)] * 50 + [(0, 4)] * 50, 1)
    assert interval.value == 0.5
    assert 0.35 < interval.low < 0.45 < 0.55 < interval.high < 0.65


def test_the_ends_are_not_certain() -> None:
    none = pass_interval([(0, 2)] * 8, 1)
    assert none.value == none.low == 0.0
    assert none.high == pytest.approx(wilson(0, 8).high)
    assert pass_interval([(2, 2)] * 8, 1).low < 0.8


def test_samples_that_agree_count_once_and_independent_ones_each() -> None:
    alike = pass_interval([(8, 8)] * 20 + [(0, 8)] * 20, 1)
    assert alike.high - alike.low == pytest.approx(
        wilson(20, 40).high - wilson(20, 40).low, abs=0.01
    )
    even = pass_interval([(4, 8)] * 40, 1)
    assert even.high - even.low == pytest.approx(
        wilson(160, 320).high - wilson(160, 320).low, abs=0.01
    )


@given(st.lists(st.tuples(st.integers(0, 4), st.just(4)), min_size=1, max_size=30))
def test_pass_intervals_hold_their_estimate(counts: list[tuple[int, int]]) -> None:
    for k in (1, 2, 4):
        interval = pass_interval(counts, k)
        assert 0.0 <= interval.low <= interval.value + 1e-12
        assert interval.value - 1e-12 <= interval.high <= 1.0
