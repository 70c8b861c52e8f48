import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.workers.dispatch import (
    CallArguments,
    by_replica,
    dispatch_of,
    first,
    gathered,
    on_all,
    on_first,
    summed,
    to_all,
    to_all_for_one,
    to_first,
    to_replicas,
    total,
)

SIZES = st.integers(1, 9)
ARGUMENTS = CallArguments((1, "a"), {"key": 2})


@given(SIZES)
def test_all_get_the_same_and_who_answers_is_said(size: int) -> None:
    assert list(to_all(ARGUMENTS, size)) == [ARGUMENTS] * size
    one, *others = to_all_for_one(ARGUMENTS, size)
    assert one == ARGUMENTS
    assert [(o.args, o.options, o.is_answered) for o in others] == [
        (ARGUMENTS.args, ARGUMENTS.options, False)
    ] * (size - 1)
    assert list(to_first(ARGUMENTS, size)) == [ARGUMENTS, *[None] * (size - 1)]


@given(st.lists(st.tuples(st.integers(), st.text()), min_size=1, max_size=9), SIZES)
def test_each_replica_gets_its_own_items(items: list[tuple[int, str]], ranks: int) -> None:
    numbers, words = [number for number, _ in items], [word for _, word in items]
    size = ranks * len(items)
    found = to_replicas(CallArguments((numbers,), {"word": words}), size)
    assert [(one.args[0], one.options["word"]) for one in found] == [
        item for item in items for _ in range(ranks)
    ]
    # What a replica gets is one object, which is pickled once.
    assert len({id(one) for one in found}) == len(items)
    with pytest.raises(ConfigError, match=f"word: got {len(items)} items, expected one for each"):
        to_replicas(CallArguments(([0] * (len(items) + 1),), {"word": words}), len(items) + 1)
    if len(items) > 1:
        with pytest.raises(ConfigError, match=f"expected one for each replica of {size + 1}"):
            to_replicas(CallArguments((numbers,), {}), size + 1)


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_results_are_joined_in_the_order_of_the_workers(results: list[float]) -> None:
    assert first(results) == results[0]
    added = results[0]
    for value in results[1:]:
        added += value
    assert total(results) == pytest.approx(added, nan_ok=True)


def test_a_method_stays_what_it_was() -> None:
    for declare in (on_first, on_all, gathered, by_replica, summed):

        def double(held: int) -> int:
            return 2 * held

        assert declare(double)(4) == 8
        assert dispatch_of(declare(double)).split(CallArguments((), {}), 1)[0] is not None
