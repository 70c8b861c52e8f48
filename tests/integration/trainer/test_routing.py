"""A mixture of experts: what the engine chose is recorded, carried and replayed."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.engine.config import EngineConfig
from agentrl.engine.experts import CHANNEL
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.routing_replay import mixtures, routed
from agentrl.engine.local.weights import update_parameters
from agentrl.errors import RunError
from agentrl.tokens import TokenRecord, verify_batch
from agentrl.trainer import RatioBandConfig, TrainerConfig
from agentrl.trainer.logprobs import policy_logprobs
from agentrl.trainer.packing import pack
from agentrl.trainer.routing_replay import warn_of_unrecorded
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import Batch, EpisodeSession, Sampling, Segment
from agentrl.weights.experts import as_in_files
from tests.integration.engine.test_mixtures import mixture
from tests.one_thread import one_thread
from tests.unit.trainer.batches import VOCAB, batch_of, random_segments, tiny_model

__all__ = ["one_thread"]
LAYERS, EXPERTS, CHOSEN = 3, 8, 3
"""An odd number, so that the last choice is between the two of a pair."""


def router_weights(model: PreTrainedModel) -> list[Tensor]:
    return [block.get_parameter("gate.weight") for block in mixtures(model).values()]


def recorded(batch: Batch) -> NDArray[np.int16]:
    return batch.channels[CHANNEL].astype(np.int16)


def moe_model() -> Qwen3MoeForCausalLM:
    """Random, with router rows that are equal in pairs up to rounding."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        max_position_embeddings=256,
        initializer_range=0.2,
    )
    model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for weight in router_weights(model):
            weight[1::2] = weight[::2] + 1e-8 * torch.randn_like(weight[::2])
    return model


async def sample(engine: LocalEngine, name: str, prompt: list[int]) -> Segment:
    """Three turns, with an answer of the environment between."""
    record = TokenRecord(VOCAB)
    record.append_prompt(prompt)
    for turn in range(3):
        if turn:
            record.append_environment([turn, 7, 9])
        completion = await engine.generate(
            record.ids,
            Sampling(max_new_tokens=12, temperature=0.9, seed=turn),
            EpisodeSession(name),
        )
        record.append_sampled(completion)
    return record.close()


@pytest.fixture(scope="module")
def model() -> Qwen3MoeForCausalLM:
    return moe_model()


def sampled_batch(model: PreTrainedModel) -> Batch:
    """Four rows with the experts that the engine chose."""

    async def run() -> list[Segment]:
        engine = LocalEngine(model, EngineConfig(prefill_tokens=16))
        prompts = [[5, 6, 7, 8] * 6, [5, 6, 7, 8] * 6, list(range(20)), [3, 1, 4, 1, 5]]
        jobs = (sample(engine, str(i), prompt) for i, prompt in enumerate(prompts))
        segments = await asyncio.gather(*jobs)
        await engine.aclose()
        return list(segments)

    segments = asyncio.run(run())
    made = batch_of(segments, advantages=(1, -1, 1, -1), temperature=0.9)
    channels = {CHANNEL: np.concatenate([s.channels[CHANNEL] for s in segments])}
    return replace(made, channels=channels)


@pytest.fixture(scope="module")
def batch(model: Qwen3MoeForCausalLM) -> Batch:
    return sampled_batch(model)


def gap(model: PreTrainedModel, batch: Batch) -> float:
    """The largest difference from the engine's logprobs."""
    packed = pack(batch, range(batch.num_rows))
    with torch.no_grad():
        policy_K = policy_logprobs(model, packed, batch.temperature).numpy()
    return float(np.abs(policy_K - batch.logprobs_N[packed.source_K]).max())


def test_a_tiny_change_flips_the_choices(model: Qwen3MoeForCausalLM) -> None:
    """Else the next test would show nothing."""
    ids = torch.randint(0, VOCAB, (1, 200))
    with torch.no_grad(), routed(model) as before:
        model(input_ids=ids)

    def nudge(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        return (arguments[0] * (1 + 1e-7 * torch.randn_like(arguments[0])),)

    hooks = [block.register_forward_pre_hook(nudge) for block in mixtures(model).values()]
    with torch.no_grad(), routed(model) as after:
        model(input_ids=ids)
    for hook in hooks:
        hook.remove()
    changed = [(a.sort(-1)[0] != b.sort(-1)[0]).any(-1) for a, b in zip(before, after, strict=True)]
    assert changed[0].float().mean() >= 0.05


def test_replayed_logprobs_are_the_engines(model: Qwen3MoeForCausalLM, batch: Batch) -> None:
    assert verify_batch(batch) == batch.num_trained == 4 * 36
    assert batch.channels[CHANNEL].shape == (batch.num_tokens, LAYERS, CHOSEN)
    assert gap(model, batch) < 1e-5
    assert gap(model, replace(batch, channels={})) > 1e-3


@pytest.mark.parametrize("kind", ["dots1", "glm4_moe", "mixtral"])
def test_mixtures_of_other_names_are_recorded_and_replayed(kind: str) -> None:
    other = mixture(kind, vocab_size=VOCAB, max_position_embeddings=256, pad_token_id=None)
    sampled = sampled_batch(other)
    assert gap(other, sampled) < 1e-4
    assert gap(other, replace(sampled, channels={})) > 1e-2


def test_an_engine_that_records_nothing_is_named(
    batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    band = RatioBandConfig(mean=1e9, max=1e9)
    trainer = LocalTrainer(tiny_model(), TrainerConfig(ratio_band=band), total_steps=3)
    trainer.update(batch_of(random_segments((9, 12)), advantages=(1, -1)))
    assert "recorded none" not in caplog.text
    warn_of_unrecorded(moe_model(), batch)
    assert "recorded none" not in caplog.text
    warn_of_unrecorded(moe_model(), replace(batch, channels={}))
    assert (
        "Qwen3MoeForCausalLM is a mixture of experts, but the engine recorded none" in caplog.text
    )


def test_rows_share_only_where_their_experts_agree(batch: Batch) -> None:
    """Rows 0 and 1 have one prompt, and row 1 got the cached experts of row 0."""
    whole = sum(len(pack(batch, [row]).ids_P) for row in range(4))
    packed = pack(batch, range(4))
    assert whole - len(packed.ids_P) >= 16
    others = recorded(batch)
    others[1 : batch.offsets_R1[1]] = (others[1 : batch.offsets_R1[1]] + 1) % EXPERTS
    differing = pack(replace(batch, channels={CHANNEL: others}), [0, 1])
    assert len(differing.ids_P) == sum(len(pack(batch, [row]).ids_P) for row in (0, 1))


def test_an_update_trains_the_router_through_the_recorded_experts(
    model: Qwen3MoeForCausalLM, batch: Batch
) -> None:
    before = [weight.detach().clone() for weight in router_weights(model)]
    after: list[list[Tensor]] = []
    for checkpointing in (False, True):
        config = TrainerConfig(lr=1e-3, activation_checkpointing=checkpointing)
        trainer = LocalTrainer(moe_model(), config, total_steps=2)
        stats = trainer.update(batch)
        assert stats.gap_max < 1e-5
        assert stats.skipped is None
        after.append(router_weights(trainer.model))
    for old, new, again in zip(before, *after, strict=True):
        assert not torch.equal(old, new)
        # Layers that backward computes again use the recorded experts too.
        torch.testing.assert_close(again, new, rtol=0, atol=1e-5)


def test_weights_have_the_names_that_files_have(model: Qwen3MoeForCausalLM, tmp_path: Path) -> None:
    """So servers know them; a served model takes them as well as its own."""
    model.save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    saved = load_file(file)
    named = dict(as_in_files(model.named_parameters()))
    assert named.keys() == saved.keys()
    assert all(torch.equal(named[name], tensor) for name, tensor in saved.items())
    other = moe_model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    update_parameters(other, list(saved.items()), partial=True)
    theirs = dict(model.named_parameters())
    assert all(torch.equal(theirs[name], value) for name, value in other.named_parameters())


def test_records_that_do_not_fit_are_refused(model: Qwen3MoeForCausalLM, batch: Batch) -> None:
    with pytest.raises(RunError, match=r"experts of 3 layers, but LlamaForCausalLM has 0"):
        policy_logprobs(tiny_model(), pack(batch, [0]), 1.0)
    prompts = recorded(batch) * batch.mask_N[:, None, None]
    with pytest.raises(RunError, match="tokens have no recorded experts"):
        policy_logprobs(model, pack(replace(batch, channels={CHANNEL: prompts}), [0]), 1.0)
