import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.weights import update_parameters
from agentrl.errors import ConfigError, EngineError
from agentrl.types import EpisodeSession, Sampling
from tests.integration.engine.plain import (
    VOCAB,
    ModelWeights,
    random_llama,
    reference_logprobs,
    sampled,
)

PROMPT = [random.Random(3).randrange(VOCAB) for _ in range(30)]
OWN_COPY = EngineConfig(slots=4, share_weights=False)


@dataclass(frozen=True)
class Tensors:
    tensors: dict[str, Tensor]

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.tensors.items()


def tensors_of(model: LlamaForCausalLM) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in ModelWeights(model).named_tensors()}


async def logprobs(engine: LocalEngine, session: str = "a") -> tuple[list[int], np.ndarray]:
    completion = await engine.generate(PROMPT, Sampling(max_new_tokens=8), EpisodeSession(session))
    return completion.ids_T.tolist(), completion.logprobs_T


async def test_an_update_while_requests_run() -> None:
    """Each token has the version, and the logprob, of the weights that it was sampled under."""
    old, new = random_llama(0), random_llama(1)
    engine = LocalEngine(old, OWN_COPY)
    jobs = [
        asyncio.create_task(
            engine.generate(
                PROMPT[i:], Sampling(max_new_tokens=120, seed=i), EpisodeSession(str(i))
            )
        )
        for i in range(6)
    ]
    await sampled(engine, 40)
    await engine.update_weights(ModelWeights(new), 5)
    completions = await asyncio.gather(*jobs)
    await engine.aclose()
    assert {int(version) for c in completions for version in c.versions_T} == {0, 5}
    for i, completion in enumerate(completions):
        ids = completion.ids_T.tolist()
        under_old, under_new = (reference_logprobs(m, PROMPT[i:], ids) for m in (old, new))
        expected = np.where(completion.versions_T == 0, under_old, under_new)
        assert np.abs(expected - completion.logprobs_T).max() < 1e-4


async def test_nothing_of_the_old_weights_is_used_after_an_update() -> None:
    engine = LocalEngine(random_llama(0), OWN_COPY)
    ids, _ = await logprobs(engine)
    new = random_llama(1)
    await engine.update_weights(ModelWeights(new), 1)
    longer = PROMPT + ids
    for session in ("a", "b"):
        completion = await engine.generate(
            longer, Sampling(max_new_tokens=4), EpisodeSession(session)
        )
        expected = reference_logprobs(new, longer, completion.ids_T.tolist())
        assert np.abs(expected - completion.logprobs_T).max() < 1e-4
    await engine.aclose()


@pytest.mark.parametrize("tied", [True, False])
async def test_each_kind_of_parameter_arrives(tied: bool) -> None:
    model = random_llama(tied=tied)
    engine = LocalEngine(model, OWN_COPY)
    parameters = dict(model.named_parameters())
    for version, name in enumerate(parameters, start=1):
        with torch.no_grad():
            parameters[name].mul_(1.5)
        await engine.update_weights(ModelWeights(model), version)
        ids, found = await logprobs(engine)
        assert np.abs(reference_logprobs(model, PROMPT, ids) - found).max() < 1e-4
    await engine.aclose()


def missing(tensors: dict[str, Tensor]) -> None:
    del tensors["model.norm.weight"]


def unknown(tensors: dict[str, Tensor]) -> None:
    tensors["model.norms.weight"] = tensors["model.norm.weight"]


def nothing(tensors: dict[str, Tensor]) -> None:
    tensors.clear()


def reshaped(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]


def integers(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].long()


def infinite(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"][3] = torch.inf


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (missing, r"lack 1 of 20 tensors, first model\.norm\.weight"),
        (unknown, r"hold the unknown 1 of 20 tensors, first model\.norms\.weight"),
        (nothing, "lack 20 of 20 tensors"),
        (reshaped, r"model\.norm\.weight of shape \(31,\), the engine's has \(32,\)"),
        (integers, r"model\.norm\.weight as torch\.int64"),
        (infinite, r"numbers in model\.norm\.weight that are not finite"),
    ],
)
async def test_wrong_weights_leave_the_old_ones(spoil: object, message: str) -> None:
    old, tensors = random_llama(0), tensors_of(random_llama(1))
    assert callable(spoil)
    spoil(tensors)
    engine = LocalEngine(old, OWN_COPY)
    with pytest.raises(EngineError, match=message):
        await engine.update_weights(Tensors(tensors), 1)
    health = await engine.health()
    assert (health.alive, health.version) == (True, 0)
    ids, found = await logprobs(engine)
    assert np.abs(reference_logprobs(old, PROMPT, ids) - found).max() < 1e-4
    await engine.aclose()


async def test_versions_only_rise() -> None:
    model = random_llama()
    engine = LocalEngine(model, OWN_COPY, version=4)
    with pytest.raises(EngineError, match="version 4, expected one above 4"):
        await engine.update_weights(ModelWeights(model), 4)
    await engine.aclose()


async def test_a_source_that_fails_harms_nobody() -> None:
    class Failing(ModelWeights):
        def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
            yield from list(super().named_tensors())[:3]
            raise KeyError("gone")

    model = random_llama()
    engine = LocalEngine(model, OWN_COPY)
    with pytest.raises(KeyError):
        await engine.update_weights(Failing(model), 1)
    assert (await engine.health()).alive
    await engine.aclose()


async def test_shared_weights_are_the_models_own() -> None:
    model = random_llama()
    engine = LocalEngine(model, EngineConfig())
    assert engine.shares_weights
    await logprobs(engine)
    await engine.pause()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    await engine.update_weights(ModelWeights(model), 1)
    await engine.resume()
    ids, found = await logprobs(engine)
    await engine.aclose()
    assert np.abs(reference_logprobs(model, PROMPT, ids) - found).max() < 1e-4
    assert vars(model.config)["_attn_implementation_internal"] == "sdpa"
    model.train()
    assert all(parameter.requires_grad for parameter in model.parameters())


async def test_a_bfloat16_copy_follows_float32_masters() -> None:
    model = random_llama()
    engine = LocalEngine(model, EngineConfig(dtype="bfloat16"))
    assert not engine.shares_weights
    await engine.update_weights(ModelWeights(random_llama(1)), 1)
    ids, found = await logprobs(engine)
    gap = np.abs(reference_logprobs(random_llama(1), PROMPT, ids) - found)
    assert gap.mean() < 0.1
    assert model.dtype == torch.float32
    await engine.aclose()


async def test_memory_is_flat_over_fifty_updates() -> None:
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
    )
    model = LlamaForCausalLM(config)
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    engine = LocalEngine(model, OWN_COPY)
    process, before = psutil.Process(), 0
    for version in range(1, 51):
        await engine.update_weights(ModelWeights(model), version)
        if version == 5:
            before = process.memory_info().rss
    grown = process.memory_info().rss - before
    await engine.aclose()
    assert grown < 2 * size


def test_sharing_needs_equal_dtypes() -> None:
    with pytest.raises(ConfigError, match="share_weights is on"):
        LocalEngine(random_llama(), EngineConfig(dtype="bfloat16", share_weights=True))


def test_a_part_of_the_weights_may_name_tied_ones_by_either_name() -> None:
    model = random_llama(tied=True)
    tied = torch.full_like(model.lm_head.weight, 0.5)
    norm = torch.full_like(model.model.norm.weight, 2.0)
    with pytest.raises(EngineError, match=r"hold the unknown 1 .*bogus"):
        update_parameters(model, [("model.norm.weight", norm), ("bogus", norm)], partial=True)
    assert not torch.equal(model.model.norm.weight, norm)
    update_parameters(model, [("lm_head.weight", tied), ("model.norm.weight", norm)], partial=True)
    assert torch.equal(model.model.embed_tokens.weight, tied)
    assert torch.equal(model.model.norm.weight, norm)
    with pytest.raises(EngineError, match="lack"):
        update_parameters(model, [("model.norm.weight", norm)])
