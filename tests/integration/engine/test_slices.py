"""Slices of several ranks into the local engine, which changes over only when all have arrived."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.errors import EngineError
from agentrl.types import EpisodeSession, Sampling
from agentrl.weights.plan import Bucket, Handle, Written
from tests.integration.engine.plain import random_llama, reference_logprobs
from tests.slices import RowSlices

PROMPT = list(range(5, 35))
OWN_COPY = EngineConfig(slots=4, share_weights=False, timeout_s=5)


async def gap(engine: LocalEngine, seed: int, version: int) -> float:
    completion = await engine.generate(PROMPT, Sampling(max_new_tokens=8), EpisodeSession("a"))
    assert set(completion.versions_T.tolist()) == {version}
    expected = reference_logprobs(random_llama(seed), PROMPT, completion.ids_T.tolist())
    return float(np.abs(expected - completion.logprobs_T).max())


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-4), ("bfloat16", 0.5)])
async def test_the_slices_of_three_ranks_arrive_each_time(dtype: str, most: float) -> None:
    config = OWN_COPY.model_copy(update={"dtype": dtype})
    engine = LocalEngine(random_llama(0), config)
    for version in (1, 2, 3, 4):
        await engine.update_weights(RowSlices(random_llama(version), 3), version)
        assert await gap(engine, version, version) < most
    await engine.aclose()


async def test_requests_run_on_while_slices_are_written() -> None:
    engine = LocalEngine(random_llama(0), OWN_COPY)

    class Slow(RowSlices):
        async def write(self, bucket: Bucket, memory: Handle, dtype: str) -> Sequence[Written]:
            written = await super().write(bucket, memory, dtype)
            assert await gap(engine, 0, 0) < 1e-4
            return written

    await engine.update_weights(Slow(random_llama(1), 2), 1)
    assert await gap(engine, 1, 1) < 1e-4
    await engine.aclose()


def dropped(bucket: Bucket) -> Bucket:
    return replace(bucket, moves=bucket.moves[:-1])


def truncated(bucket: Bucket) -> Bucket:
    move = bucket.moves[-1]
    source_box, target_box = (
        ((a, b - 1), *rest) for (a, b), *rest in (move.source_box, move.target_box)
    )
    short = move._replace(source_box=source_box, target_box=target_box)
    return replace(bucket, moves=(*bucket.moves[:-1], short))


@pytest.mark.parametrize("spoil", [dropped, truncated])
async def test_a_slice_that_is_lost_leaves_the_old_weights(
    spoil: Callable[[Bucket], Bucket],
) -> None:
    engine = LocalEngine(random_llama(0), OWN_COPY)
    with pytest.raises(EngineError, match=r"rank \d of the trainer wrote .* bytes of the weights"):
        await engine.update_weights(RowSlices(random_llama(1), 2, spoil), 1)
    assert await gap(engine, 0, 0) < 1e-4
    await engine.update_weights(RowSlices(random_llama(1), 2), 1)
    assert await gap(engine, 1, 1) < 1e-4
    await engine.aclose()


async def test_another_model_numbers_that_are_not_finite_and_late_ranks_leave_the_old_weights() -> (
    None
):
    class Late(RowSlices):
        async def write(self, bucket: Bucket, memory: Handle, dtype: str) -> Sequence[Written]:
            await asyncio.sleep(60)
            return []

    infinite = random_llama(1)
    with torch.no_grad():
        infinite.get_parameter("model.norm.weight")[31] = torch.nan
    engine = LocalEngine(random_llama(0), OWN_COPY.model_copy(update={"timeout_s": 2}))
    for source, said in (
        (RowSlices(random_llama(1, tied=False), 2), r"lm_head\.weight\[0:97, 0:32\] has no place"),
        (RowSlices(random_llama(1, kv_heads=4), 2), r"k_proj\.weight.* has no place in the engine"),
        (RowSlices(random_llama(1, kv_heads=1), 2), r"k_proj\.weight.*, which no rank of the tra"),
        (RowSlices(infinite, 2), r"numbers in model\.norm\.weight that are not finite"),
        (Late(random_llama(1), 2), r"did not write its slices of the weights within 2 s"),
    ):
        with pytest.raises(EngineError, match=said):
            await engine.update_weights(source, 1)
    assert await gap(engine, 0, 0) < 1e-4
    await engine.aclose()
