"""Rows go to the ranks that compute them, each to one replica, and come back to their places."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.tokens import verify_batch
from agentrl.trainer.algorithms.losses import make_loss
from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.micro_batches import split_over_ranks
from agentrl.trainer.packing import trained_rows
from agentrl.trainer.parallel_dims import ParallelDims
from agentrl.trainer.shares import Dealer, add_outputs
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, random_segments

LENGTHS = st.lists(st.integers(2, 30), min_size=1, max_size=9)


def dealer(replicas: int, token_budget: int, sequence: int = 1, loss: str = "clip") -> Dealer:
    config = TrainerConfig(loss=loss, token_budget=token_budget)
    layout = ParallelDims(size=replicas * sequence, sequence=sequence)
    return Dealer(config, layout, width=32, longest=99, loss=make_loss(config))


def random_batch(lengths: list[int], seed: int) -> Batch:
    """Some rows have no weight, some no advantage; the groups lie in two mini-batches."""
    rng = np.random.default_rng(seed)
    num = len(lengths)
    batch = batch_of(
        random_segments(lengths, seed),
        advantages=rng.integers(0, 2, num).tolist(),
        weights=rng.integers(0, 3, num).tolist(),
        episodes=sorted(rng.integers(0, num, num).tolist()),
    )
    minibatch_E = rng.integers(0, 2, len(batch.episode_ids)).astype(np.int32)
    return replace(batch, minibatch_E=minibatch_E)


@given(LENGTHS, st.integers(0, 2**16), st.integers(1, 4), st.sampled_from([1, 25, 999]))
@settings(max_examples=60)
def test_every_row_is_verified_by_one_replica_and_computed_where_it_was_planned(
    lengths: list[int], seed: int, replicas: int, token_budget: int
) -> None:
    batch = random_batch(lengths, seed)
    dealt = dealer(replicas, token_budget).for_update(batch)
    assert len(dealt) == replicas
    rows = [share.rows_R[share.own_R] for parts in dealt for share in parts]
    assert sorted(np.concatenate(rows).tolist()) == list(range(batch.num_rows))
    assert sum(verify_batch(s.batch) for parts in dealt for s in parts) == batch.num_trained
    advantages_N, trained = batch.advantages_N, trained_rows(batch)
    assert advantages_N is not None
    assert batch.minibatch_E is not None
    has_R = np.array([advantages_N[batch.row(r)].any() for r in range(batch.num_rows)])
    for number, part in enumerate(np.unique(batch.minibatch_E[batch.episode_R])):
        mine = trained[batch.minibatch_E[batch.episode_R][trained] == part]
        for name, chosen in (("micros", mine[has_R[mine]]), ("measured", mine[~has_R[mine]])):
            plan = split_over_ranks(
                batch, chosen, num_ranks=replicas, token_budget=token_budget, width=32
            )
            found: list[list[list[int]]] = [
                [share.rows_R[micro].tolist() if micro else [] for micro in getattr(share, name)]
                for share in (parts[number] for parts in dealt)
            ]
            assert found == plan
    for share in (share for parts in dealt for share in parts):
        for own, row in enumerate(share.rows_R.tolist()):
            there, here = batch.row(row), share.batch.row(own)
            assert (share.batch.ids_N[here] == batch.ids_N[there]).all()
            before = batch.episode_R[:row] == batch.episode_R[row]
            assert share.segments_R[own] == before.sum()


@given(LENGTHS, st.integers(0, 2**16), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=40)
def test_what_ranks_compute_comes_back_to_its_places(
    lengths: list[int], seed: int, replicas: int, sequence: int
) -> None:
    """Each rank of a replica has the numbers of some of its tokens."""
    batch = replace(batch_of(random_segments(lengths, seed)), weights_N=None)
    shares = dealer(replicas, 25, sequence).for_pass(batch)
    rng = np.random.default_rng(seed)
    outputs: list[dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]] = []
    for share in shares:
        logprobs_K = share.batch.logprobs_N[share.batch.mask_N]
        rank_K = rng.integers(0, sequence, len(logprobs_K))
        for rank in range(sequence):
            lines = np.stack([logprobs_K, 2 * logprobs_K]) * (rank_K == rank)
            outputs.append({"values": lines.astype(np.float32)})
    found = add_outputs(batch, shares, outputs)
    assert found.values_N is not None
    assert found.cost_values_N is not None
    assert (found.values_N == np.where(batch.mask_N, batch.logprobs_N, 0)).all()
    assert (found.cost_values_N == 2 * found.values_N).all()
    assert found.reference_N is None


def test_a_loss_that_looks_at_all_rows_gets_them_and_says_which_are_its_own() -> None:
    batch = replace(random_batch([9, 20, 7, 30, 12, 4], 1), minibatch_E=None)
    [one], [other] = dealer(2, 25, loss="kl_cov").for_update(batch)
    assert one.batch.num_rows == other.batch.num_rows == batch.num_rows
    assert one.own_R.any()
    assert (one.own_R ^ other.own_R).all()
    computed = [row for micro in (*one.micros, *one.measured) for row in micro]
    assert one.own_R[computed].all()


def middled(logprobs_K: Tensor, tokens: TrainedTokens) -> tuple[Tensor, Statistics]:
    """Less the mean advantage of all rows, also of those that another rank has."""
    advantages_N = tokens.batch.advantages_N
    assert advantages_N is not None
    mean = float(advantages_N[tokens.batch.mask_N].mean())
    return -(tokens.weights_K * (tokens.advantages_K - mean) * logprobs_K).sum(), {}


def test_a_loss_that_looks_at_all_rows_without_saying_so_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'so declare @needs\("all rows"\)'):
        make_loss(TrainerConfig(loss="<mine>"), middled)

    @needs("all rows")
    def declared(logprobs_K: Tensor, tokens: TrainedTokens) -> tuple[Tensor, Statistics]:
        return middled(logprobs_K, tokens)

    assert make_loss(TrainerConfig(loss="<mine>"), declared).needs == ("all rows",)
