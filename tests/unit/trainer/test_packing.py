from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import RunError
from agentrl.trainer.micro_batches import split_over_ranks
from agentrl.trainer.packing import num_read, pack, plan, trained_rows
from agentrl.types import Segment
from tests.unit.trainer.batches import batch_of, random_segments, segment


def test_the_example_by_hand() -> None:
    batch = batch_of(
        [segment([10, 11], [([12], [13]), ([14], [])]), segment([15], [([16, 17], [18, 19])])]
    )
    packed = pack(batch, [0, 1])
    assert packed.tree.offsets_S1.tolist() == [0, 4, 6]
    assert packed.tree.ends_S.tolist() == [4, 6]
    assert packed.ids_P.tolist() == [10, 11, 12, 13, 15, 16]
    assert packed.positions_P.tolist() == [0, 1, 2, 3, 0, 1]
    assert packed.targets_K.tolist() == [12, 14, 16, 17]
    assert packed.predictors_K.tolist() == [1, 3, 4, 5]
    assert packed.source_K.tolist() == [2, 4, 6, 7]


@given(
    st.lists(st.integers(3, 40), min_size=1, max_size=12),
    st.integers(1, 90),
)
def test_every_trained_token_is_packed_once_within_the_budget(
    lengths: list[int], token_budget: int
) -> None:
    batch = batch_of(random_segments(lengths, seed=len(lengths)))
    rows = trained_rows(batch)
    micros = plan(batch, rows, token_budget)
    assert sorted(row for micro in micros for row in micro) == rows.tolist()
    seen: list[int] = []
    for micro in micros:
        packed = pack(batch, micro)
        assert len(packed.ids_P) <= token_budget or len(micro) == 1
        assert packed.tree.num_tokens == len(packed.ids_P) == len(packed.positions_P)
        seen += packed.source_K.tolist()
        np.testing.assert_array_equal(packed.targets_K, batch.ids_N[packed.source_K])
        # The token that predicts each target stands right before it in the same row.
        before = batch.ids_N[packed.source_K - 1]
        np.testing.assert_array_equal(packed.ids_P[packed.predictors_K], before)
    assert sorted(seen) == np.flatnonzero(batch.mask_N).tolist()


def test_rows_without_weight_or_trained_tokens_take_no_part() -> None:
    rows = [segment([1, 2], [([3, 4], [])]) for _ in range(3)]
    batch = batch_of(rows, weights=(1, 0, 0))
    batch.mask_N[batch.row(2)] = False
    assert trained_rows(replace(batch, weights_N=None)).tolist() == [0, 1]
    assert trained_rows(batch).tolist() == [0]
    assert num_read(batch, 0) == 3


def test_a_trained_first_token_is_refused() -> None:
    batch = batch_of([segment([1], [([2], [])]), segment([1], [([2], [])])])
    batch.mask_N[2] = True
    with pytest.raises(RunError, match="first token of row 1"):
        trained_rows(batch)


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_weights_must_be_sound(weight: float) -> None:
    batch = batch_of([segment([1], [([2], [])])])
    assert batch.weights_N is not None
    batch.weights_N[1] = weight
    with pytest.raises(RunError, match=rf"gave {weight} for token 1 of the batch \(episode epis"):
        trained_rows(batch)


def test_rows_that_begin_alike_go_to_one_rank() -> None:
    """Two groups of four, and afterwards one row as long as all the others together."""
    prompts = [[1] * 24, [2] * 24]
    rows = [segment(prompts[i % 2], [([3 + i] * 8, [])]) for i in range(8)]

    def split(segments: Sequence[Segment], num_ranks: int) -> list[set[int]]:
        batch = batch_of(segments)
        every = trained_rows(batch)
        plans = split_over_ranks(batch, every, num_ranks=num_ranks, token_budget=900, width=32)
        assert len({len(plan) for plan in plans}) == 1
        return [{row for micro in plan for row in micro} for plan in plans]

    assert split(rows, 2) == [{0, 2, 4, 6}, {1, 3, 5, 7}]
    assert split(rows, 1) == [set(range(8))]
    alone = [*rows, segment([9], [([4] * 90, [])])]
    assert {8} in split(alone, 2)
    assert sorted(map(len, split(rows[:1], 2))) == [0, 1]
    # The second of two equal rows of a multiple of the stride costs nothing.
    twins = [segment([1] * 23, [([3, 4], [])])] * 2
    assert sorted(row for rows in split(twins, 2) for row in rows) == [0, 1]
