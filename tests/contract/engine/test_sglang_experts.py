"""A mixture of experts on a real server: what it records is what transformers would choose."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.experts import CHANNEL, experts_per_token
from agentrl.engine.local.routing_replay import routed
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import TensorTransport
from agentrl.tokens import TokenRecord
from agentrl.trainer.weights import ModelWeights
from agentrl.types import EpisodeSession, Sampling
from tests.contract.engine.conftest import READY_S

pytestmark = [pytest.mark.sglang, pytest.mark.nightly, pytest.mark.timeout(600)]


def make_model(tiny_folder: Path, folder: Path, seed: int = 0) -> Qwen3MoeForCausalLM:
    """Random, with the tiny model's tokenizer."""
    shutil.copytree(tiny_folder, folder)
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=768,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=8,
        num_experts_per_tok=3,
        max_position_embeddings=1024,
        initializer_range=0.1,
    )
    model = Qwen3MoeForCausalLM(config)
    model.save_pretrained(folder)
    return model


def chosen_experts(model: Qwen3MoeForCausalLM, ids: list[int]) -> NDArray[np.int64]:
    """Of each token, [T, layers, chosen], in order."""
    with torch.no_grad(), routed(model) as chosen:
        model(input_ids=torch.tensor([ids]))
    return np.sort(torch.stack(chosen, 1).numpy(), -1)


async def test_the_server_records_the_experts_of_every_token(
    sglang_folder: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    model = make_model(tiny_folder, folder)
    new = make_model(tiny_folder, tmp_path / "new", seed=1)
    config = EngineConfig(dtype="float32", sglang=SglangConfig(kv_tokens=4096))
    server = start(config, folder, tmp_path / "logs")
    engine = SglangEngine(
        [server],
        vocab_size=768,
        context_length=1000,
        experts=experts_per_token(folder),
        transport=TensorTransport(),
    )
    record = TokenRecord(768)
    record.append_prompt(range(300, 340))
    try:
        await engine.start(ready_s=READY_S, weights=ModelWeights(model))
        for _ in range(2):
            completion = await engine.generate(
                record.ids, Sampling(max_new_tokens=8), EpisodeSession("a")
            )
            record.append_sampled(completion)
            record.append_environment([5, 6])
        prompt = list(range(300, 340))
        running = asyncio.ensure_future(
            engine.generate(prompt, Sampling(max_new_tokens=900), EpisodeSession("b"))
        )
        await asyncio.sleep(0.5)
        await engine.update_weights(ModelWeights(new), 1)
        across = await running
    finally:
        await engine.aclose()
    segment = record.close()
    expected = chosen_experts(model, segment.ids_T.tolist())[:57]
    # Nearly tied experts may differ.
    got = np.sort(segment.channels[CHANNEL][1:58], -1)
    assert (got == expected).mean() > 0.99
    # Those of what was sampled before the update are the old weights', though computed again.
    assert set(across.versions_T.tolist()) == {0, 1}
    ids = prompt + across.ids_T.tolist()
    both_VTLC = np.stack([chosen_experts(one, ids)[39:-1] for one in (model, new)])
    expected = both_VTLC[across.versions_T, np.arange(900)]
    assert (np.sort(across.channels[CHANNEL], -1) == expected).mean() > 0.99
