"""Rows over ranks: each once, equally many micro-batches, equal cost, no chance."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.trainer.micro_batches import cost, deal, split_over_ranks
from agentrl.trainer.packing import pack, trained_rows
from tests.unit.trainer.batches import batch_of, random_segments


@given(
    costs=st.lists(st.floats(0.1, 100), max_size=40),
    num_ranks=st.integers(1, 6),
)
def test_what_is_dealt_is_balanced(costs: list[float], num_ranks: int) -> None:
    shares = deal(costs, num_ranks)
    assert sorted(i for share in shares for i in share) == list(range(len(costs)))
    loads = [sum(costs[i] for i in share) for share in shares]
    # Who has most got its last one when it had least of all.
    assert max(loads) <= sum(costs) / num_ranks + max(costs, default=0) + 1e-9
    assert shares == deal(costs, num_ranks)


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=12),
    num_ranks=st.integers(1, 4),
    token_budget=st.integers(1, 150),
)
@settings(max_examples=30)
def test_every_row_is_computed_once(lengths: list[int], num_ranks: int, token_budget: int) -> None:
    batch = batch_of(random_segments(lengths))
    rows = trained_rows(batch)
    plans = split_over_ranks(batch, rows, num_ranks=num_ranks, token_budget=token_budget, width=32)
    assert len(plans) == num_ranks
    assert len({len(plan) for plan in plans}) == 1
    found = [row for plan in plans for micro in plan for row in micro]
    assert sorted(found) == rows.tolist()
    for micro in [micro for plan in plans for micro in plan if len(micro) > 1]:
        assert len(pack(batch, micro).ids_P) <= token_budget


def test_long_rows_weigh_more_than_their_tokens() -> None:
    assert cost(1000, 64) > 2 * cost(500, 64)
    batch = batch_of(random_segments([400, *[40] * 10]))
    plans = split_over_ranks(batch, trained_rows(batch), num_ranks=2, token_budget=10**6, width=8)
    alone = next(plan for plan in plans if 0 in plan[0])
    assert alone == [[0]]
