"""Every kind of parameter arrives by itself, and over scrambled weights, on the real server.

Models whose servers tell no numbers: a Qwen 2 with biases and a head of its own, a mixture of
experts; and adapters that are merged.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.process import Server
from agentrl.engine.servers.weights import Named
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import SharedTransport, TensorTransport, Transport
from agentrl.engine.sglang.weights.transport import Target
from agentrl.errors import EngineError
from agentrl.trainer.config import LoraConfig
from agentrl.trainer.lora import add_adapters
from agentrl.trainer.weights import ModelWeights
from tests.contract.engine.test_sglang_models import gap, scramble, serving

pytestmark = [pytest.mark.sglang, pytest.mark.nightly, pytest.mark.timeout(600)]

PROMPT = list(range(300, 340))
SHAPE: Mapping[str, Any] = {
    "vocab_size": 768,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
MODELS: Mapping[str, Callable[[], PreTrainedModel]] = {
    "biases": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "experts": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SHAPE, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=3)
    ),
}
COMMON = (
    "model.embed_tokens.weight",
    "lm_head.weight",
    "model.norm.weight",
    "model.layers.1.post_attention_layernorm.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.1.self_attn.o_proj.weight",
)
KINDS = {
    "biases": (
        *COMMON,
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.1.self_attn.v_proj.bias",
        "model.layers.1.mlp.gate_proj.weight",
    ),
    "experts": (
        *COMMON,
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.1.mlp.gate.weight",  # the router
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.1.mlp.experts.down_proj",
    ),
}
TRANSPORTS: Mapping[str, Callable[[], Transport]] = {
    "tensor": TensorTransport,
    "shared": lambda: SharedTransport(bucket_bytes=100_000),
}


def make_model(kind: str) -> PreTrainedModel:
    """Random numbers everywhere, also where a new model has ones and zeros."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture(scope="module")
def servers(
    sglang_folder: Path, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Server]]:
    """Both, started at once, with the tiny model's tokenizer."""
    config = EngineConfig(dtype="float32", sglang=SglangConfig(kv_tokens=4096))
    root, started = tmp_path_factory.mktemp("kinds"), dict[str, Server]()
    try:
        for kind in MODELS:
            shutil.copytree(tiny_folder, root / kind)
            make_model(kind).save_pretrained(root / kind)
            started[kind] = start(config, root / kind, root / "logs", keys=Keys())
        yield started
    finally:
        for server in started.values():
            server.stop()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", MODELS)
async def test_each_kind_of_parameter_arrives(
    servers: Mapping[str, Server], kind: str, transport: str
) -> None:
    model = make_model(kind)
    weights = ModelWeights(model)
    async with serving(servers[kind], 768, TRANSPORTS[transport](), weights) as engine:
        await scramble(engine, model, PROMPT)
        await engine.update_weights(weights, 1)
        assert await gap(engine, model, PROMPT, 8, 1) < 1e-4
        for version, name in enumerate(KINDS[kind], start=2):
            old = deepcopy(model)
            with torch.no_grad():
                parameter = model.get_parameter(name)
                parameter.add_(torch.randn_like(parameter) * 0.1)
            await engine.update_weights(weights, version)
            assert await gap(engine, model, PROMPT, 4, version) < 1e-4, name
            with pytest.raises(AssertionError):
                await gap(engine, old, PROMPT, 4, version)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_adapter_that_changes_arrives(
    servers: Mapping[str, Server], transport: str
) -> None:
    model = make_model("biases")
    add_adapters(model, LoraConfig(rank=4))
    weights = ModelWeights(model)
    async with serving(servers["biases"], 768, TRANSPORTS[transport](), weights) as engine:
        assert await gap(engine, model, PROMPT, 8, 0) < 1e-4
        for version, layer in enumerate(("0.self_attn.q_proj", "1.mlp.down_proj"), start=1):
            old = deepcopy(model)
            with torch.no_grad():
                model.get_parameter(f"model.layers.{layer}.lora_B.default.weight").add_(0.2)
            await engine.update_weights(weights, version)
            assert await gap(engine, model, PROMPT, 4, version) < 1e-4
            with pytest.raises(AssertionError):
                await gap(engine, old, PROMPT, 4, version)


class Dense(TensorTransport):
    """Sends what a dense model has."""

    async def send(
        self, targets: Sequence[Target], named: Named, version: int, *, flush: bool
    ) -> Sequence[EngineError | None]:
        dense = [pair for pair in named if ".experts." not in pair[0]]
        return await super().send(targets, dense, version, flush=flush)


async def test_experts_that_do_not_arrive_are_missed(servers: Mapping[str, Server]) -> None:
    model = make_model("experts")
    weights = ModelWeights(model)
    async with serving(servers["experts"], 768, TensorTransport(), weights):
        pass
    async with serving(servers["experts"], 768, Dense(), weights) as engine:
        with torch.no_grad():
            for layer in (0, 1):
                model.get_parameter(f"model.layers.{layer}.mlp.experts.down_proj").mul_(1.1)
                model.get_parameter(f"model.layers.{layer}.mlp.experts.gate_up_proj").mul_(1.1)
        with pytest.raises(EngineError, match=r"experts\.w\d+_weight did not change, but what was"):
            await engine.update_weights(weights, 1)


async def test_memory_is_given_up_and_taken_back(servers: Mapping[str, Server]) -> None:
    """A CPU's server has no saver: it takes every call and frees nothing."""
    model = make_model("biases")
    weights = ModelWeights(model)
    async with serving(servers["biases"], 768, SharedTransport(), weights) as engine:
        with pytest.raises(EngineError, match="pause them first"):
            await engine.release_memory()
        await engine.pause()
        await engine.release_memory()
        with pytest.raises(EngineError, match="weights memory is released and cannot be loaded"):
            await engine.update_weights(weights, 1)
        await engine.resume_memory(("weights",))
        with torch.no_grad():
            model.get_parameter("model.norm.weight").mul_(1.2)
        await engine.update_weights(weights, 1)
        await engine.resume_memory(("kv_cache", "cuda_graph"))
        await engine.resume()
        assert await gap(engine, model, PROMPT, 8, 1) < 1e-4
