"""Servers of other shapes: a real model of 135 million parameters, and a model on two ranks."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import TensorTransport
from agentrl.tokens import Tokenizer
from agentrl.trainer.weights import ModelWeights
from agentrl.types import Sampling, Session
from tests.contract.engine.conftest import READY_S

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@asynccontextmanager
async def serving(
    config: SglangConfig, folder: Path, model: PreTrainedModel, logs: Path
) -> AsyncIterator[SglangEngine]:
    """An engine over a server of its own."""
    engine = SglangEngine(
        [start(EngineConfig(dtype="float32", sglang=config), folder, logs)],
        vocab_size=int(model.config.vocab_size),
        context_length=1000,
        transport=TensorTransport(),
        timeout_s=120,
    )
    try:
        await engine.start(ready_s=READY_S)
        yield engine
    finally:
        await engine.aclose()


async def gap(engine: SglangEngine, model: PreTrainedModel, ids: Sequence[int], num: int) -> float:
    completion = await engine.generate(ids, Sampling(max_tokens=num), Session("a"))
    sampled = torch.from_numpy(completion.ids_T).long()
    with torch.no_grad():
        logits = model(input_ids=torch.cat([torch.tensor(ids), sampled])[None, :-1]).logits[0]
    ours = logits[len(ids) - 1 :].log_softmax(-1).gather(1, sampled[:, None])[:, 0].numpy()
    return float(np.abs(ours - completion.logprobs_T).max())


async def test_a_real_models_logprobs_are_those_of_transformers(
    sglang_folder: Path, tmp_path: Path
) -> None:
    shared = Path.home() / ".cache" / "agentrl"  # big downloads are shared by all test runs
    folder = resolve_model("smollm2-135m", cache_dir=shared)
    model = load_model(folder, "float32")
    ids = Tokenizer.load(folder).encode(QUESTION, specials=True)
    async with serving(SglangConfig(kv_tokens=2048), folder, model, tmp_path) as engine:
        assert await gap(engine, model, ids, 24) < 1e-5


async def test_two_ranks_take_an_update_by_tensor(
    sglang_folder: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    model = load_model(tiny_folder)
    config = SglangConfig(tp_size=2, kv_tokens=4096, memory_fraction=0.5)
    async with serving(config, tiny_folder, model, tmp_path) as engine:
        info = engine.slots[0].info
        assert info is not None
        assert (info.tp_size, info.dp_size, info.kv_tokens) == (2, 1, 4096)
        ids = list(range(300, 340))
        assert await gap(engine, model, ids, 8) < 1e-4
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        await engine.update_weights(ModelWeights(model), 1)
        assert await gap(engine, model, ids, 16) < 1e-4
