"""An engine that gives its memory up while a trainer works, and takes it back."""

# pyright: reportPrivateUsage=false

import random

import numpy as np
import pytest

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.errors import EngineError
from agentrl.types import EpisodeSession, Sampling
from tests.integration.engine.plain import ModelWeights, random_llama, reference_logprobs
from tests.slices import RowSlices

PROMPT = [random.Random(3).randrange(97) for _ in range(30)]
OWN_COPY = EngineConfig(slots=4, share_weights=False)


def held_bytes(engine: LocalEngine) -> tuple[int, int]:
    """Of the weights, and of the cache."""
    stepper = engine._stepper
    weights = sum(p.untyped_storage().nbytes() for p in stepper.model.parameters())
    cache = stepper._cache
    return weights, sum(x.untyped_storage().nbytes() for x in (cache.keys, cache.values))


@pytest.mark.parametrize("sliced", [True, False])
async def test_memory_is_given_up_and_taken_back(sliced: bool) -> None:
    engine, new = LocalEngine(random_llama(0), OWN_COPY), random_llama(1)
    await engine.generate(PROMPT, Sampling(max_new_tokens=4), EpisodeSession("a"))
    before = held_bytes(engine)
    await engine.pause()
    await engine.release_memory()
    assert held_bytes(engine) == (0, 0)
    with pytest.raises(EngineError, match="weights memory is released and cannot be loaded"):
        await engine.update_weights(ModelWeights(new), 1)
    await engine.resume_memory(("weights",))
    with pytest.raises(EngineError, match="weights memory is resumed and cannot be used"):
        await engine.resume()
    await engine.update_weights(RowSlices(new, 2) if sliced else ModelWeights(new), 1)
    with pytest.raises(EngineError, match="kv_cache memory is released and cannot be used"):
        await engine.resume()
    await engine.resume_memory(("kv_cache", "cuda_graph"))
    await engine.resume()
    completion = await engine.generate(PROMPT, Sampling(max_new_tokens=4), EpisodeSession("a"))
    expected = reference_logprobs(new, PROMPT, completion.ids_T.tolist())
    assert np.abs(expected - completion.logprobs_T).max() < 1e-4
    assert held_bytes(engine)[1] == before[1]
    await engine.aclose()


async def test_what_is_out_of_turn_is_refused_in_one_sentence() -> None:
    engine = LocalEngine(random_llama(0), OWN_COPY)
    with pytest.raises(EngineError, match="that samples cannot be released; pause it first"):
        await engine.release_memory()
    await engine.pause()
    with pytest.raises(EngineError, match="is serving and cannot be resumed, since it was not"):
        await engine.resume_memory(("kv_cache",))
    await engine.release_memory(("kv_cache",))
    with pytest.raises(EngineError, match="kv_cache memory is released and cannot be released"):
        await engine.release_memory(("weights", "kv_cache"))
    assert held_bytes(engine)[0] > 0, "all that is named is released, or nothing"
    await engine.aclose()
