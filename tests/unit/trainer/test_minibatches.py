"""Whole groups, dealt evenly, and what is left of a batch of some episodes alone."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tokens import verify_batch
from agentrl.trainer.algorithms.minibatches import deal_groups, split_minibatches
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, random_segments


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 6), st.integers(0, 99))
def test_groups_stay_together_and_are_shared_evenly(
    groups: list[int], number: int, seed: int
) -> None:
    batch = batch_of(random_segments([3] * len(groups)))
    batch = replace(batch, group_E=np.array(groups, dtype=np.int32))
    dealt = deal_groups(batch, number, seed)
    places = {(group, place) for group, place in zip(groups, dealt.tolist(), strict=True)}
    assert len(places) == len(set(groups))
    counts = np.bincount([place for _, place in places])
    assert len(counts) == min(number, len(set(groups)))
    assert counts.max() - counts.min() <= 1
    assert dealt.tolist() == deal_groups(batch, number, seed).tolist()


def whole_batch() -> Batch:
    """Four episodes, the second in two segments, with everything that a batch may have."""
    batch = batch_of(
        random_segments((9, 12, 7, 15, 20)),
        episodes=(0, 1, 1, 2, 3),
        advantages=(1, 2, 3, 4, 5),
        turn_rewards=[(1.0, 2.0), (3.0,), (4.0, 5.0, 6.0), (7.0,)],
    )
    return replace(
        batch,
        group_E=np.array([0, 1, 0, 1], dtype=np.int32),
        rewards_E=np.arange(4.0),
        channels={"heat": np.arange(2 * batch.num_tokens).reshape(-1, 2)},
        keys_U=tuple("abcdefg"),
        parts_E={"one": np.arange(4.0) + 10},
        greedy_E=np.arange(4.0) + 20,
        reference_N=np.arange(batch.num_tokens, dtype=np.float32),
    )


def test_a_part_of_a_batch_is_a_batch() -> None:
    batch = whole_batch()
    part = batch.take_episodes(np.array([False, True, False, True]))
    assert verify_batch(replace(part, channels={})) == part.num_trained > 0
    assert part.num_rows == 3
    assert part.episode_ids == ("episode-1", "episode-3")
    assert part.episode_R.tolist() == [0, 0, 1]
    assert part.rewards_E.tolist() == [1, 3]
    assert part.keys_U == ("c", "g")
    assert part.turn_rewards_U is not None
    assert part.turn_rewards_U.tolist() == [3, 7]
    assert part.turn_offsets_E1 is not None
    assert part.turn_offsets_E1.tolist() == [0, 1, 2]
    assert part.parts_E["one"].tolist() == [11, 13]
    for mine, row in enumerate((1, 2, 4)):
        for name in ("ids_N", "reference_N", "advantages_N"):
            whole, taken = getattr(batch, name), getattr(part, name)
            assert taken[part.row(mine)].tolist() == whole[batch.row(row)].tolist(), name
        heat, taken = batch.channels["heat"], part.channels["heat"]
        assert taken[part.row(mine)].tolist() == heat[batch.row(row)].tolist()
        assert part.digests_R[mine] == batch.digests_R[row]


def test_all_of_a_batch_is_the_batch() -> None:
    batch = whole_batch()
    part = batch.take_episodes(np.ones(4, dtype=np.bool_))
    for each in fields(batch):
        whole, taken = getattr(batch, each.name), getattr(part, each.name)
        if isinstance(whole, np.ndarray):
            assert whole.dtype == taken.dtype, each.name
            assert np.array_equal(whole, taken), each.name
        elif not isinstance(whole, dict):
            assert whole == taken, each.name


@pytest.mark.parametrize("minibatches", [[0, 0, 0, 0], [1, 0, 1, 2]])
def test_mini_batches_are_all_of_the_batch(minibatches: list[int]) -> None:
    batch = replace(whole_batch(), minibatch_E=np.array(minibatches, dtype=np.int32))
    seen = np.zeros(batch.num_tokens)
    for part, chosen_N in split_minibatches(batch):
        assert (part.ids_N == batch.ids_N[chosen_N]).all()
        seen += chosen_N
    assert (seen == 1).all()
