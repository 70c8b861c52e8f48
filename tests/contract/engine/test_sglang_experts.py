"""A mixture of experts on a real server: what it records is what transformers would choose."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.experts import CHANNEL, experts_per_token
from agentrl.engine.local.routing_replay import routed
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import start
from agentrl.tokens import TokenRecord
from agentrl.types import EpisodeSession, Sampling
from tests.contract.engine.conftest import READY_S

pytestmark = [pytest.mark.sglang, pytest.mark.nightly, pytest.mark.timeout(600)]


def make_model(tiny_folder: Path, folder: Path) -> Qwen3MoeForCausalLM:
    """Random, with the tiny model's tokenizer."""
    shutil.copytree(tiny_folder, folder)
    torch.manual_seed(0)
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


async def test_the_server_records_the_experts_of_every_token(
    sglang_folder: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    model = make_model(tiny_folder, folder)
    config = EngineConfig(dtype="float32", sglang=SglangConfig(kv_tokens=4096))
    server = start(config, folder, tmp_path / "logs")
    engine = SglangEngine(
        [server], vocab_size=768, context_length=1000, experts=experts_per_token(folder)
    )
    record = TokenRecord(768)
    record.append_prompt(range(300, 340))
    try:
        await engine.start(ready_s=READY_S)
        for _ in range(2):
            completion = await engine.generate(
                record.ids, Sampling(max_new_tokens=8), EpisodeSession("a")
            )
            record.append_sampled(completion)
            record.append_environment([5, 6])
    finally:
        await engine.aclose()
    segment = record.close()
    with torch.no_grad(), routed(model) as chosen:
        model(input_ids=torch.from_numpy(segment.ids_T).long()[None])
    expected = torch.stack(chosen, 1).numpy()[:57]
    # Nearly tied experts may differ, and their order is anybody's.
    got = np.sort(segment.channels[CHANNEL][1:58], -1)
    assert (got == np.sort(expected, -1)).mean() > 0.99
