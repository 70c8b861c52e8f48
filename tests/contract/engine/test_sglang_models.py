"""Servers of other shapes: a real model of 135 million parameters, two ranks, adapters."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and peft are not typed)

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import psutil
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from torch import nn

from agentrl.engine import WeightSource
from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.process import Server
from agentrl.engine.servers.weights import Named
from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import (
    AdapterTransport,
    SharedTransport,
    TensorTransport,
    Transport,
)
from agentrl.errors import EngineError
from agentrl.tokens import Tokenizer
from agentrl.trainer.weights import ModelWeights
from agentrl.types import EpisodeSession, Sampling
from agentrl.weights.plan import Bucket, Handle, Written
from tests.contract.engine.conftest import READY_S
from tests.slices import RowSlices

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

PROMPT = list(range(300, 340))
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def servers(
    sglang_folder: Path, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Server]]:
    """All of them, started at once, since each takes long by itself."""
    shared = Path.home() / ".cache" / "agentrl"  # big downloads are shared by all test runs
    real = resolve_model("smollm2-135m", cache_dir=shared)
    lora = (
        "--enable-lora --max-lora-rank 4 --lora-target-modules q_proj v_proj "
        "--lora-backend torch_native --max-loras-per-batch 3"
    )
    wanted = {
        "ranks": (tiny_folder, SglangConfig(tp_size=2, kv_tokens=4096, memory_fraction=0.5)),
        "adapters": (tiny_folder, SglangConfig(kv_tokens=4096, extra_args=lora)),
        "real": (real, SglangConfig(kv_tokens=2048)),
    }
    logs, started = tmp_path_factory.mktemp("logs"), dict[str, Server]()
    try:
        for name, (folder, config) in wanted.items():
            settings = EngineConfig(dtype="float32", sglang=config)
            started[name] = start(settings, folder, logs, keys=Keys())
        yield started
    finally:
        for server in started.values():
            server.stop()


@asynccontextmanager
async def serving(
    server: Server,
    vocab_size: int,
    transport: Transport | None = None,
    weights: WeightSource | None = None,
) -> AsyncGenerator[SglangEngine]:
    """An engine over a server, which outlives it and asks for no key."""
    await server.wait_ready(READY_S)
    engine = SglangEngine(
        [server.url], vocab_size=vocab_size, context_length=1000, transport=transport, timeout_s=120
    )
    try:
        await engine.start(ready_s=READY_S, weights=weights)
        yield engine
    finally:
        await engine.aclose()


async def gap(
    engine: SglangEngine,
    model: nn.Module,
    ids: Sequence[int],
    num: int,
    version: int,
    session: str = "a",
    *,
    across: bool = False,
) -> float:
    """The mean difference between the server's logprobs and transformers'; none is above 1e-4.

    `across` an update a token that only the server stops at ends what has the first version.
    """
    completion = await engine.generate(ids, Sampling(max_new_tokens=num), EpisodeSession(session))
    of_version = completion.versions_T == version
    assert of_version[0] if across else of_version.all()
    sampled = torch.tensor(completion.ids_T.tolist())
    with torch.no_grad():
        logits = model(input_ids=torch.cat([torch.tensor(ids), sampled])[None, :-1]).logits[0]
    ours = logits[len(ids) - 1 :].log_softmax(-1).gather(1, sampled[:, None])[:, 0].numpy()
    gaps = np.abs(ours - completion.logprobs_T)[of_version]
    assert gaps.max() < 1e-4
    return float(gaps.mean())


@dataclass
class Adapter:
    """The adapter of a model, as a `WeightSource`."""

    model: nn.Module

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from get_peft_model_state_dict(self.model).items()


def adapter_config(model: PeftModel) -> Mapping[str, object]:
    """What PEFT writes into `adapter_config.json`."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config: Mapping[str, object] = json.loads(
            (Path(folder) / "adapter_config.json").read_text()
        )
    return config


def shape(model: nn.Module, factor: float) -> None:
    """Give every tensor of the adapter a size that tells."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * factor)


async def loaded(server: Server) -> list[str]:
    """The adapters that the server says it has."""
    async with httpx.AsyncClient(base_url=server.url, headers=server.keys.headers()) as http:
        models = (await http.get("/v1/models")).json()["data"]
    return sorted(model["id"] for model in models if model["id"].startswith("agentrl-"))


async def test_two_ranks_take_an_update_by_tensor(
    servers: Mapping[str, Server], tiny_folder: Path
) -> None:
    model = load_model(tiny_folder)
    async with serving(servers["ranks"], 768, TensorTransport()) as engine:
        info = engine.slots[0].info
        assert info is not None
        assert (info.tp_size, info.dp_size, info.kv_tokens) == (2, 1, 4096)
        assert await gap(engine, model, PROMPT, 8, 0) < 1e-4
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        await engine.update_weights(ModelWeights(model), 1)
        assert await gap(engine, model, PROMPT, 16, 1) < 1e-4


async def test_a_paused_server_leaves_the_cores_to_who_writes_its_weights(
    servers: Mapping[str, Server],
) -> None:
    def cpu_s() -> float:
        ranks = psutil.Process(servers["ranks"].guard.pid).children(recursive=True)
        return sum(sum(rank.cpu_times()[:2]) for rank in ranks)

    async with serving(servers["ranks"], 768) as engine:
        await engine.pause()
        before = cpu_s()
        await asyncio.sleep(1)
        used_s = cpu_s() - before
        await engine.resume()
    assert used_s < 0.25


KINDS = (
    "model.embed_tokens.weight",  # and the head, which is tied to it
    "model.norm.weight",
    "model.layers.1.input_layernorm.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.2.self_attn.o_proj.weight",
    "model.layers.1.mlp.up_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
)


async def scramble(engine: SglangEngine, model: nn.Module, prompt: Sequence[int]) -> None:
    """Give a server that samples like the model other weights, and see that they are others."""
    assert await gap(engine, model, prompt, 8, 0) < 1e-4
    control = engine.slots[0].control
    assert isinstance(control, Control)
    await control.send("/weights_checker", {"action": "reset_tensors"}, timeout_s=60)
    await control.flush()
    with pytest.raises(AssertionError):
        await gap(engine, model, prompt, 8, 0)


async def test_slices_go_straight_into_two_ranks(
    servers: Mapping[str, Server], tiny_folder: Path
) -> None:
    """Scrambled weights are replaced; then each kind of parameter arrives by itself."""
    model = load_model(tiny_folder)
    transport = SharedTransport(bucket_bytes=100_000)
    async with serving(servers["ranks"], 768, transport, RowSlices(model, 3)) as engine:
        await scramble(engine, model, PROMPT)
        await engine.update_weights(RowSlices(model, 3), 1)
        assert await gap(engine, model, PROMPT, 16, 1) < 1e-4
        for version, name in enumerate(KINDS, start=2):
            old = deepcopy(model)
            with torch.no_grad():
                model.get_parameter(name).mul_(1.3)
            await engine.update_weights(RowSlices(model, 3), version)
            assert await gap(engine, model, PROMPT, 4, version) < 1e-4
            with pytest.raises(AssertionError):
                await gap(engine, old, PROMPT, 4, version)


class Faulty(SharedTransport):
    """Makes one of the faults that a way to the server can make, in the last bucket."""

    fault: Callable[[Named], Named] | None = None

    def payload(self, bucket: Bucket, rank: int, data: torch.Tensor, dtype: torch.dtype) -> Named:
        named = super().payload(bucket, rank, data, dtype)
        last = any(name == "model.norm.weight" for name, _ in named)
        return self.fault(named) if self.fault is not None and last else named


class Late(RowSlices):
    async def write(self, bucket: Bucket, memory: Handle, dtype: str) -> Sequence[Written]:
        await asyncio.sleep(60)
        return []


@dataclass
class Torn(RowSlices):
    """Fails when some of it is loaded already; the next time too if it is `broken`."""

    broken: bool = False
    writes: int = 0

    async def write(self, bucket: Bucket, memory: Handle, dtype: str) -> Sequence[Written]:
        self.writes += 1
        if self.writes == 3 or (self.broken and self.writes > 3):
            raise EngineError("a rank stumbled")
        return await super().write(bucket, memory, dtype)


def renamed(named: Named) -> Named:
    return [*named, (named[-1][0].replace("norm", "norms"), named[-1][1])]


async def test_a_fault_on_the_way_leaves_the_old_version_serving(
    servers: Mapping[str, Server], tiny_folder: Path
) -> None:
    old, new = load_model(tiny_folder), load_model(tiny_folder)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.mul_(1.2)
    transport = Faulty(bucket_bytes=100_000, timeout_s=5)
    async with serving(servers["ranks"], 768, transport, RowSlices(old, 2)) as engine:
        faults: list[tuple[Callable[[Named], Named] | None, WeightSource, str]] = [
            (lambda named: named[:-1], RowSlices(new, 2), r"rank 0 lacks model\.norm\.weight"),
            (renamed, RowSlices(new, 2), r"holds the unknown model\.norms\.weight"),
            (
                lambda named: [(name, tensor[:-1]) for name, tensor in named],
                RowSlices(new, 2),
                r"of shape \(\d+.*expected torch\.float32 of shape",
            ),
            (None, Late(new, 2), "did not write its slices of the weights within 5 s"),
        ]
        for fault, source, said in faults:
            transport.fault = fault
            with pytest.raises(EngineError, match=said):
                await engine.update_weights(source, 1)
            assert engine.version == 0
            assert await gap(engine, old, PROMPT, 4, 0) < 1e-4
        transport.fault = None
        await engine.update_weights(RowSlices(new, 2), 1)
        assert await gap(engine, new, PROMPT, 8, 1) < 1e-4


async def test_a_server_with_parts_of_two_versions_is_rolled_forward_or_does_not_serve(
    servers: Mapping[str, Server], tiny_folder: Path
) -> None:
    model = load_model(tiny_folder)
    transport = SharedTransport(bucket_bytes=100_000)
    async with serving(servers["ranks"], 768, transport, RowSlices(model, 2)) as engine:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.2)
        await engine.update_weights(Torn(model, 2), 1)
        assert await gap(engine, model, PROMPT, 8, 1) < 1e-4
        with pytest.raises(EngineError, match=r"took the weights of version 2: .*stumbled"):
            await engine.update_weights(Torn(model, 2, broken=True), 2)
        assert engine.slots[0].state == "stale"
        await engine.update_weights(RowSlices(model, 2), 3)
        assert await gap(engine, model, PROMPT, 8, 3) < 1e-4


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
async def test_each_version_is_an_adapter_of_its_own(
    servers: Mapping[str, Server], tiny_folder: Path
) -> None:
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    adapted = get_peft_model(load_model(tiny_folder), lora)
    shape(adapted, 0.1)
    old = deepcopy(adapted)
    transport = AdapterTransport(adapter_config(adapted))
    server = servers["adapters"]
    async with serving(server, 768, transport, Adapter(adapted)) as engine:
        assert await gap(engine, old, PROMPT, 16, 0) < 1e-4
        running = asyncio.ensure_future(gap(engine, old, PROMPT, 400, 0, across=True))
        await asyncio.sleep(0.3)
        shape(adapted, -0.2)
        await engine.update_weights(Adapter(adapted), 1)
        assert await gap(engine, adapted, PROMPT, 16, 1, "b") < 1e-4
        assert await running < 1e-4
        assert await loaded(server) == [transport.adapter(0), transport.adapter(1)]
        await engine.update_weights(Adapter(adapted), 2)
        assert await loaded(server) == [transport.adapter(2)]
        assert await gap(engine, adapted, PROMPT, 16, 2) < 1e-4


async def test_a_real_models_logprobs_are_those_of_transformers(
    servers: Mapping[str, Server],
) -> None:
    shared = Path.home() / ".cache" / "agentrl"
    folder = resolve_model("smollm2-135m", cache_dir=shared)
    ids = Tokenizer.load(folder).encode(QUESTION, specials=True)
    async with serving(servers["real"], 49152) as engine:
        assert await gap(engine, load_model(folder, "float32"), ids, 24, 0) < 1e-5
