"""Ages of tokens: what is told of them, and what is too old to be trained on."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.trainer.algorithms.corrections import are_rejected
from agentrl.trainer.algorithms.staleness import lag_metrics, mask_late
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, random_segments

BATCH = batch_of(random_segments((30, 25, 20)))


def of_ages(ages: list[int], version: int = 9) -> Batch:
    """The batch with trained tokens of these ages, over and over."""
    places = np.flatnonzero(BATCH.mask_N)
    versions_N = np.full(BATCH.num_tokens, -1, np.int32)
    versions_N[places] = version - np.resize(ages, len(places))
    return replace(BATCH, version=version, versions_N=versions_N)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 9))
def test_exactly_what_is_too_old_is_masked_and_told(ages: list[int], most: int) -> None:
    batch = of_ages(ages)
    found = mask_late(batch, 9 - most)
    lags_N = 9 - batch.versions_N
    assert (found.mask_N == (batch.mask_N & (lags_N <= most))).all()
    if max(lags_N[batch.mask_N]) <= most:
        assert found is batch
    else:
        assert found.rejected_N is not None
        assert (found.rejected_N | found.mask_N == batch.mask_N).all()
    told = lag_metrics(batch)
    lags_K = lags_N[batch.mask_N]
    assert told["lag/mean"] == pytest.approx(lags_K.mean())
    assert told["lag/max"] == lags_K.max()
    assert sorted(lags_K)[(len(lags_K) - 1) // 2] == told["lag/p50"]
    assert told["lag/stale"] == pytest.approx(np.mean(lags_K > 0))


def test_an_episode_of_nothing_but_old_tokens_is_rejected() -> None:
    batch = of_ages([0])
    first_N = np.repeat(batch.episode_R == 0, np.diff(batch.offsets_R1))
    batch = replace(batch, versions_N=np.where(first_N, 5, batch.versions_N))
    assert are_rejected(mask_late(batch, 8))[0]
    assert not are_rejected(mask_late(batch, 8))[1:].any()


def test_nothing_is_told_where_nothing_is_known() -> None:
    assert lag_metrics(replace(of_ages([1]), version=None)) == {}
    nothing = replace(of_ages([1]), mask_N=np.zeros(BATCH.num_tokens, np.bool_))
    assert lag_metrics(nothing) == {}
