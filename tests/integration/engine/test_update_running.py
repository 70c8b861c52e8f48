"""Updates and pauses while requests run: what each token is from, and which clocks stand still."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import asyncio
import random
import time

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.engine.config import EngineConfig
from agentrl.engine.experts import CHANNEL
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.routing_replay import routed
from agentrl.engine.local.stepper import Stepper
from agentrl.errors import EngineError
from agentrl.types import EpisodeSession, Sampling
from tests.integration.engine.plain import (
    VOCAB,
    ModelWeights,
    random_llama,
    reference_logprobs,
    sampled,
)

PROMPT = [random.Random(3).randrange(VOCAB) for _ in range(30)]
LONG = Sampling(max_new_tokens=300, seed=7)


def settings(timeout_s: float = 30.0) -> EngineConfig:
    """Prompts in small pieces, so that updates come while a sequence is computed again."""
    return EngineConfig(slots=4, share_weights=False, prefill_tokens=16, timeout_s=timeout_s)


def slowed(model: PreTrainedModel) -> PreTrainedModel:
    """The model, of which no pass is so fast that requests end before an update comes."""

    def wait(*_: object) -> None:
        time.sleep(0.004)

    model.register_forward_pre_hook(wait)
    return model


def random_mixture(seed: int) -> Qwen3MoeForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=8,
        num_experts_per_tok=3,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    model = Qwen3MoeForCausalLM(config)
    model.train(False)
    return model


@pytest.mark.parametrize("paused", [False, True])
async def test_a_request_runs_across_several_updates(paused: bool) -> None:
    """Its ids stay; what follows is from the new weights, with keys and values of theirs alone."""
    models = [random_llama(seed) for seed in range(4)]
    engine = LocalEngine(slowed(models[0]), settings())
    jobs = [
        asyncio.create_task(engine.generate(PROMPT[i:], LONG, EpisodeSession(str(i))))
        for i in range(3)
    ]
    for version in range(1, 4):
        await sampled(engine, 120 * version)
        if paused:
            await engine.pause()
        await engine.update_weights(ModelWeights(models[version]), version)
        if paused:
            await engine.resume()
    completions = await asyncio.gather(*jobs)
    await engine.aclose()
    for i, completion in enumerate(completions):
        ids, versions_T = completion.ids_T.tolist(), completion.versions_T
        assert len(ids) == LONG.max_new_tokens
        assert set(versions_T.tolist()) == {0, 1, 2, 3}
        assert (np.diff(versions_T) >= 0).all()
        under_VT = np.stack([reference_logprobs(model, PROMPT[i:], ids) for model in models])
        gaps_VT = np.abs(under_VT - completion.logprobs_T)
        assert gaps_VT[versions_T, np.arange(len(ids))].max() < 1e-3
        assert gaps_VT[(versions_T + 1) % 4, np.arange(len(ids))].mean() > 0.1


def chosen_experts(model: PreTrainedModel, ids: list[int]) -> NDArray[np.int64]:
    with torch.no_grad(), routed(model) as chosen:
        model(input_ids=torch.tensor([ids]), use_cache=False)
    return np.sort(torch.stack(chosen, 1).numpy(), -1)


async def test_experts_of_older_tokens_outlive_an_update() -> None:
    models = [random_mixture(seed) for seed in range(4)]
    engine = LocalEngine(slowed(models[0]), settings())
    job = asyncio.create_task(engine.generate(PROMPT, LONG, EpisodeSession("a")))
    await sampled(engine, 100)
    await engine.update_weights(ModelWeights(models[1]), 1)
    # While the sequence is computed again, or soon after.
    await engine.update_weights(ModelWeights(models[2]), 2)
    other = await engine.generate(PROMPT, Sampling(max_new_tokens=1), EpisodeSession("b"))
    await sampled(engine, 180)
    await engine.pause()
    await engine.release_memory(("kv_cache",))
    await engine.resume_memory(("kv_cache",))
    await engine.resume()
    await engine.update_weights(ModelWeights(models[3]), 3)
    completion = await job
    await engine.aclose()
    ids, versions_T = PROMPT + completion.ids_T.tolist(), completion.versions_T
    assert set(versions_T.tolist()) >= {0, 2, 3}
    of_version = [chosen_experts(model, ids) for model in models]
    expected = np.stack(of_version)[versions_T, 29 + np.arange(len(versions_T))]
    assert (np.sort(completion.channels[CHANNEL], -1) == expected).mean() > 0.999
    prompt = np.sort(completion.prompt_channels[CHANNEL][1:], -1)
    assert (prompt == of_version[0][:29]).mean() > 0.999
    # Whoever begins after an update, on what that request computed again, has those of its own.
    (version,) = other.versions_T.tolist()
    prompt = np.sort(other.prompt_channels[CHANNEL][1:], -1)
    assert (prompt == of_version[version][:29]).mean() > 0.999


async def test_an_update_waits_for_no_completion(llama: LlamaForCausalLM) -> None:
    engine = LocalEngine(slowed(random_llama(5)), settings())
    job = asyncio.create_task(engine.generate(PROMPT, LONG, EpisodeSession("a")))
    await sampled(engine, 10)
    for version in range(1, 4):
        await engine.update_weights(ModelWeights(llama), version)
        assert not job.done()
    assert len((await job).ids_T) == LONG.max_new_tokens
    await engine.aclose()


async def test_a_pause_does_not_count_for_a_request(llama: LlamaForCausalLM) -> None:
    engine = LocalEngine(llama, settings(timeout_s=2.0))
    await engine.pause()
    job = asyncio.create_task(
        engine.generate(PROMPT, Sampling(max_new_tokens=20), EpisodeSession("a"))
    )
    await asyncio.sleep(2.5)
    assert not job.done()
    await engine.resume()
    assert len((await job).ids_T) == 20
    assert 2.4 < engine.paused_s < 30
    await engine.aclose()


async def test_a_paused_engine_that_dies_is_noticed(llama: LlamaForCausalLM) -> None:
    def die(_: Stepper) -> None:
        raise RuntimeError("gone")

    engine = LocalEngine(llama, settings())
    await engine.pause()
    job = asyncio.create_task(engine.generate(PROMPT, LONG, EpisodeSession("a")))
    await asyncio.sleep(0.01)
    began = time.monotonic()
    with pytest.raises(EngineError, match="thread died: RuntimeError: gone"):
        await engine.between_steps(die)
    with pytest.raises(EngineError, match="thread died: RuntimeError: gone"):
        await job
    assert time.monotonic() - began < 20
    await engine.aclose()
