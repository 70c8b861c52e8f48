"""Real FSDP ranks write their slices into the local engine and into a server's layout."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# torch is typed in part only.

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.sglang.weights.layout import server_layout
from agentrl.trainer import TrainerConfig
from agentrl.trainer.config import LoraConfig
from agentrl.trainer.executor import RankTrainer
from agentrl.trainer.roles import TrainerPlan
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import EpisodeSession, Sampling
from agentrl.weights.plan import buckets, plan, shapes_of
from agentrl.weights.shared import share, view
from agentrl.weights.source import SlicedSource
from tests.integration.engine.plain import reference_logprobs
from tests.integration.ranks.cases import CONFIG, ragged

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(180)]

LAYOUTS = [(3, 1), pytest.param(2, 2, marks=pytest.mark.nightly)]
PROMPT = list(range(5, 35))


def start(folder: Path, config: TrainerConfig, total_steps: int) -> RankTrainer:
    plan = TrainerPlan(folder=folder, config=config, total_steps=total_steps, threads=1)
    return RankTrainer(plan)


def expected(full: Mapping[str, torch.Tensor], rank: int) -> torch.Tensor:
    """What one of two ranks of a server has as the first layer's `qkv_proj`."""
    parts = [full[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"]
    return torch.cat([part.chunk(2)[rank] for part in parts])


@pytest.mark.parametrize(("ranks", "replicate"), LAYOUTS)
async def test_ranks_publish_what_they_hold(tiny_folder: Path, ranks: int, replicate: int) -> None:
    config = TrainerConfig(ranks=ranks, replicate=replicate)
    group = start(tiny_folder, config, 1)
    model = load_model(tiny_folder)
    full = {name: value.detach().clone() for name, value in model.named_parameters()}
    try:
        weights = group.weights()
        assert isinstance(weights, SlicedSource)
        engine = LocalEngine(model, EngineConfig(share_weights=False, slots=2))
        with torch.no_grad():  # so that it can be seen what arrives
            for parameter in engine._stepper.model.parameters():
                parameter.zero_()
        await engine.update_weights(weights, 1)
        completion = await engine.generate(PROMPT, Sampling(max_new_tokens=6), EpisodeSession("a"))
        await engine.aclose()
        wanted = reference_logprobs(model, PROMPT, completion.ids_T.tolist())
        assert np.abs(wanted - completion.logprobs_T).max() < 1e-4

        layout = weights.layout()
        assert shapes_of(layout) == {name: tuple(value.shape) for name, value in full.items()}
        fused = "model.layers.0.self_attn.qkv_proj.weight"
        sources = [name for name in full if ".layers.0.self_attn." in name and "o_proj" not in name]
        theirs = [{n: h for n, h in rank.items() if n in sources} for rank in layout]
        ours = server_layout([[fused], [fused]], shapes_of(theirs), kv_heads=2)
        (bucket,) = buckets(ours, plan(theirs, ours), 4, 1 << 30)
        memory = share(bucket.num_bytes)
        written = await weights.write(bucket, memory.handle, "float32")
        assert sum(one.num_bytes for one in written) == 2 * expected(full, 0).nbytes
        for rank in (0, 1):
            found = view(memory.data, bucket, rank, fused, torch.float32)
            assert torch.equal(found, expected(full, rank))
    finally:
        group.close()


@pytest.mark.parametrize(("ranks", "replicate"), LAYOUTS)
async def test_adapters_are_merged_slice_by_slice(
    tiny_folder: Path, ranks: int, replicate: int
) -> None:
    lora = LoraConfig(rank=4)
    config = CONFIG.model_copy(
        update={"ranks": ranks, "replicate": replicate, "lora": lora, "lr": 1e-2}
    )
    batch = ragged((20, 7, 19, 3), 3)
    group = start(tiny_folder, config, 2)
    try:
        assert [group.update(batch).skipped for _ in range(2)] == [None, None]
        weights = group.weights()
        assert isinstance(weights, SlicedSource)
        model = load_model(tiny_folder)
        engine = LocalEngine(model, EngineConfig(share_weights=False, slots=2))
        await engine.update_weights(weights, 1)
        arrived = dict(engine._stepper.model.named_parameters())
        torch.manual_seed(0)  # as the ranks do, so that adapters begin alike
        trainer = LocalTrainer(load_model(tiny_folder), config, total_steps=2)
        for _ in range(2):
            trainer.update(batch)
        alone = dict(trainer.weights().named_tensors())
        assert arrived.keys() == alone.keys()
        for name, base in model.named_parameters():
            torch.testing.assert_close(arrived[name], alone[name], rtol=1e-4, atol=1e-5)
            adapted = name.split(".")[-2].endswith("_proj")
            assert torch.equal(arrived[name], base) is not adapted, name
        for name, tensor in weights.named_tensors():
            assert torch.equal(tensor, arrived[name]), name
        await engine.aclose()
    finally:
        group.close()


async def test_one_rank_may_keep_its_weights_in_host_memory(tiny_folder: Path) -> None:
    """On an accelerator, or on whatever `auto` finds, it is a process of its own."""
    config = CONFIG.model_copy(update={"offload": True, "device": "auto", "lr": 1e-2})
    assert config.is_apart
    assert not config.model_copy(update={"device": "cpu"}).is_apart
    batch = ragged((20, 7, 19, 3), 3)
    trainer = LocalTrainer(load_model(tiny_folder), config, total_steps=2)
    expected = [trainer.update(batch).loss for _ in range(2)]
    group = start(tiny_folder, config, 2)
    try:
        assert [group.update(batch).loss for _ in range(2)] == pytest.approx(expected, abs=1e-5)
        engine = LocalEngine(load_model(tiny_folder), EngineConfig(share_weights=False, slots=2))
        await engine.update_weights(group.weights(), 1)
        for name, arrived in engine._stepper.model.named_parameters():
            ours = trainer.model.get_parameter(name)
            torch.testing.assert_close(arrived, ours, rtol=1e-4, atol=1e-5)
        await engine.aclose()
    finally:
        group.close()
