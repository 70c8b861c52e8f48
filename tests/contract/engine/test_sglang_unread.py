"""A server whose model tells no numbers of its weights, as most do: Qwen 2 on the real server."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.servers.weights import Named
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import TensorTransport
from agentrl.engine.sglang.weights.transport import Target
from agentrl.errors import EngineError
from agentrl.trainer.weights import ModelWeights
from agentrl.types import EpisodeSession, Sampling
from tests.contract.engine.conftest import READY_S

pytestmark = [pytest.mark.sglang, pytest.mark.nightly, pytest.mark.timeout(600)]


class Forgets(TensorTransport):
    """Says that it sent."""

    forgets = False

    async def send(
        self, targets: Sequence[Target], named: Named, version: int, *, flush: bool
    ) -> Sequence[EngineError | None]:
        if self.forgets:
            return [None] * len(targets)
        return await super().send(targets, named, version, flush=flush)


def make_model(tiny_folder: Path, folder: Path) -> Qwen2ForCausalLM:
    shutil.copytree(tiny_folder, folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=768,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.1,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return model


async def test_weights_arrive_where_they_cannot_be_read_back(
    sglang_folder: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    model = make_model(tiny_folder, folder)
    transport = Forgets()
    config = EngineConfig(dtype="float32", sglang=SglangConfig(kv_tokens=4096))
    server = start(config, folder, tmp_path / "logs")
    engine = SglangEngine([server], vocab_size=768, context_length=1000, transport=transport)
    ids = list(range(300, 340))
    try:
        await engine.start(ready_s=READY_S, weights=ModelWeights(model))
        for version in (1, 2):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.05)
            await engine.update_weights(ModelWeights(model), version)
            found = await engine.generate(
                ids, Sampling(max_new_tokens=8), EpisodeSession(f"{version}")
            )
            sampled = torch.tensor(found.ids_T.tolist())
            with torch.no_grad():
                logits = model(torch.cat([torch.tensor(ids), sampled])[None, :-1]).logits[0]
            ours = logits[len(ids) - 1 :].log_softmax(-1).gather(1, sampled[:, None])[:, 0]
            assert (ours - torch.tensor(found.logprobs_T.tolist())).abs().max() < 1e-4
        transport.forgets = True
        with torch.no_grad():
            model.model.norm.weight.mul_(1.05)
        with pytest.raises(EngineError, match=r"norm.weight did not change, but what was sent did"):
            await engine.update_weights(ModelWeights(model), 3)
    finally:
        await engine.aclose()
