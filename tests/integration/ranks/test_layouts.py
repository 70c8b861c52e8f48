"""Copies of shards, pieces of sequences, bfloat16, adapters, slices of files: the same update."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from agentrl.engine.local.models.load import load_model
from agentrl.errors import ConfigError
from agentrl.trainer import TrainerConfig
from agentrl.trainer.config import KlConfig, LoraConfig, check_heads
from agentrl.trainer.fsdp import local, whole
from agentrl.trainer.parallel_dims import SINGLE, ParallelDims, Ranks, arrange
from agentrl.trainer.sharded_load import empty_model
from agentrl.trainer.trainer import LocalTrainer
from agentrl.trainer.updates import StepStats
from agentrl.types import Batch
from agentrl.workers.dispatch import gathered
from tests.integration.ranks.cases import CONFIG, Update, caught, ragged, reference, steps, update
from tests.integration.ranks.conftest import Group
from tests.integration.trainer.test_routing import moe_model, sampled_batch
from tests.unit.trainer.batches import batch_of, random_segments, tiny_model

LENGTHS = (20, 7, 19, 3, 18, 33, 4, 4)
_arranged: dict[ParallelDims, Ranks] = {}


def in_layout(ranks: Ranks, layout: ParallelDims) -> Ranks:
    """The same processes in another layout."""
    if layout not in _arranged:
        _arranged[layout] = arrange(ranks.rank, layout, ranks.device)
    return _arranged[layout]


@gathered
def arranged(ranks: Ranks, layout: ParallelDims, batch: Batch, config: TrainerConfig) -> Update:
    """An update in another layout."""
    return update(in_layout(ranks, layout), batch, config, torch.float64)


@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=6),
    seed=st.integers(0, 2**16),
    token_budget=st.sampled_from([1, 25, 10_000]),
    checkpointing=st.booleans(),
)
@example(lengths=[2, 9], seed=14, token_budget=1, checkpointing=False)
@settings(max_examples=15)
@pytest.mark.parametrize("options", [{"sequence": 2}, {"replicate": 2}])
def test_layouts_equal_the_slow_reference(
    group: Group,
    options: dict[str, int],
    lengths: list[int],
    seed: int,
    token_budget: int,
    checkpointing: bool,
) -> None:
    batch = ragged(lengths, seed)
    expected = reference(batch)
    config = CONFIG.model_copy(
        update={"token_budget": token_budget, "activation_checkpointing": checkpointing}
    )
    layout = ParallelDims(size=2, timeout_s=30, **options)
    for result in group(2).ask(arranged, layout, batch, config):
        assert result.stats.loss == pytest.approx(expected.loss, rel=1e-9, abs=1e-12)
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(result.gradients[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", ["gspo(low=0.5, high=0.5)", "gmpo", "cispo"])
def test_a_ratio_over_a_row_is_that_of_all_its_pieces(group: Group, loss: str) -> None:
    """Rows of 2 to 33 tokens are cut in the middle; in one a rank has nothing that is trained."""
    batch = ragged((20, 7, 19, 3, 18, 33), 2)
    for token_budget in (1, 60):
        config = CONFIG.model_copy(update={"loss": loss, "token_budget": token_budget})
        [expected] = group(1).ask(update, batch, config, torch.float64)
        layout = ParallelDims(size=2, timeout_s=30, sequence=2)
        for result in group(2).ask(arranged, layout, batch, config):
            assert result.stats.loss == pytest.approx(expected.stats.loss, rel=1e-9)
            statistics = expected.stats.loss_statistics
            assert result.stats.loss_statistics == pytest.approx(statistics)
            for name, gradient in expected.gradients.items():
                torch.testing.assert_close(result.gradients[name], gradient, rtol=1e-9, atol=1e-12)


def test_heads_that_cannot_be_shared_are_named() -> None:
    check_heads(4, 2, 2)
    with pytest.raises(ConfigError, match=r"4 attention heads and 2 .* 1 or 2 ranks"):
        check_heads(4, 2, 4)
    with pytest.raises(ConfigError, match=r"shared by 1, 2, 3 or 6 ranks"):
        check_heads(12, 6, 4)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("fp32_head", [False, True])
def test_bfloat16_rounds_passes_and_nothing_else(group: Group, size: int, fp32_head: bool) -> None:
    batch = ragged(LENGTHS, 5)
    expected = reference(batch)
    config = CONFIG.model_copy(update={"precision": "bfloat16", "fp32_head": fp32_head})
    result = group(size).ask(update, batch, config, torch.float32)[0]
    exact = group(size).ask(update, batch, CONFIG, torch.float32)[0]
    assert 1e-5 < abs(result.stats.loss / expected.loss - 1) < 3e-2
    for name, gradient in expected.gradients.items():
        assert result.gradients[name].dtype == torch.float32
        error = (result.gradients[name] - gradient).norm() / gradient.norm()
        assert 1e-4 < error < 6e-2, name
        assert (exact.gradients[name] - gradient).norm() / gradient.norm() < 1e-5, name


@gathered
def adapters(
    ranks: Ranks, batch: Batch, config: TrainerConfig
) -> tuple[float, float, dict[str, Tensor]]:
    trainer = LocalTrainer(tiny_model(), config, total_steps=3, ranks=ranks)
    batch = trainer.with_outputs(batch, ["reference"])
    losses = [trainer.update(batch).loss for _ in range(3)]
    kl = trainer.update(batch).kl
    return losses[-1], kl, {n: whole(t).clone() for n, t in trainer.weights().named_tensors()}


@gathered
def penalised(
    ranks: Ranks, layout: ParallelDims, batch: Batch, config: TrainerConfig
) -> tuple[float, float, dict[str, Tensor]]:
    """The same in another layout."""
    return adapters(in_layout(ranks, layout), batch, config)


@pytest.mark.parametrize(
    ("rank", "kl", "entropy_coef"),
    [
        (4, KlConfig(coef=0.1), 0.0),
        (4, KlConfig(coef=0.1, kind="exact"), 0.05),
        (0, KlConfig(coef=0.1, kind="exact"), 0.05),
    ],
)
def test_penalties_to_what_is_frozen_and_the_bonus(
    group: Group, rank: int, kl: KlConfig, entropy_coef: float
) -> None:
    """Adapters diverge from their base, whole weights from a copy that is sharded as they are."""
    batch = ragged(LENGTHS, 3)
    lora = LoraConfig(rank=rank, dtype="float32")
    config = CONFIG.model_copy(
        update={"lora": lora, "lr": 1e-2, "kl": kl, "entropy_coef": entropy_coef}
    )
    loss, measured, weights = group(1).ask(adapters, batch, config)[0]
    assert measured > 1e-4
    layouts = [ParallelDims(size=2, timeout_s=30), ParallelDims(size=3, timeout_s=30)]
    if rank == 0:
        layouts.append(ParallelDims(size=2, sequence=2, timeout_s=30))
    for layout in layouts:
        found = group(layout.size).ask(penalised, layout, batch, config)
        for their_loss, their_kl, theirs in found:
            assert their_loss == pytest.approx(loss, abs=1e-5)
            assert their_kl == pytest.approx(measured, abs=1e-5)
            for name, weight in weights.items():
                torch.testing.assert_close(theirs[name], weight, rtol=1e-4, atol=1e-5)


@gathered
def values(ranks: Ranks, batch: Batch, config: TrainerConfig) -> tuple[list[float], list[float]]:
    trainer = LocalTrainer(tiny_model(), config, total_steps=3, ranks=ranks)
    losses: list[float] = []
    for _ in range(3):
        batch = trainer.with_outputs(batch, ["values"])
        losses.append(trainer.update(batch).value_loss or 0.0)
    assert batch.values_N is not None
    return losses, batch.values_N.tolist()


def test_a_critic_is_shared_too(group: Group) -> None:
    segments = random_segments(LENGTHS, 4)
    turns = [len(segment.appends_A) // 2 for segment in segments]
    rewards = [(*[0.0] * (n - 1), float(i)) for i, n in enumerate(turns)]
    advantages = [1.0, -1.0] * (len(segments) // 2)
    batch = batch_of(segments, turn_rewards=rewards, advantages=advantages)
    config = CONFIG.model_copy(update={"algorithm": "ppo", "lr": 1e-2})
    losses, found = group(1).ask(values, batch, config)[0]
    assert any(found)
    for size in (2, 3):
        for theirs, their_values in group(size).ask(values, batch, config):
            assert theirs == pytest.approx(losses, abs=1e-5)
            assert their_values == pytest.approx(found, abs=1e-5)


@gathered
def read(ranks: Ranks, folder: Path) -> tuple[dict[str, Tensor], list[float], int]:
    model = empty_model(folder)
    assert model is not None
    assert all(p.is_meta for p in model.parameters())
    trainer = LocalTrainer(model, TrainerConfig(), total_steps=1, ranks=ranks, folder=folder)
    weights = {name: whole(p.detach()).clone() for name, p in trainer.model.named_parameters()}
    held = sum(local(p).numel() for p in trainer.model.parameters())
    return weights, trainer.logprobs(list(range(20))), held


def test_each_rank_reads_its_slices_of_the_files(group: Group, tiny_folder: Path) -> None:
    model = load_model(tiny_folder)
    expected = dict(model.named_parameters())
    total = sum(p.numel() for p in model.parameters())
    logprobs = LocalTrainer(model, TrainerConfig(), total_steps=1).logprobs(list(range(20)))
    for size in (2, 3):
        found = group(size).ask(read, tiny_folder)
        assert sum(held for _, _, held in found) == total
        assert max(held for _, _, held in found) < total / size * 1.1
        for weights, their_logprobs, _ in found:
            assert their_logprobs == pytest.approx(logprobs, abs=1e-5)
            assert weights.keys() == expected.keys()
            for name, weight in weights.items():
                assert torch.equal(weight, expected[name]), name


COMMON: dict[str, object] = {
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
OTHERS: dict[str, dict[str, object]] = {
    "qwen2": COMMON,  # with biases
    "qwen3_moe": COMMON
    | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gpt2": {
        **{"vocab_size": 31, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "summary_first_dropout": 0.0},
        **{"bos_token_id": 1, "eos_token_id": 1},
    },
}


@gathered
def other(ranks: Ranks, kind: str, batch: Batch) -> list[float]:
    torch.manual_seed(0)
    settings = AutoConfig.for_model(kind, initializer_range=0.2, **OTHERS[kind])
    make = AutoModelForCausalLM.from_config
    model = cast(PreTrainedModel, make(settings))  # type: ignore[no-untyped-call]
    trainer = LocalTrainer(model, CONFIG, total_steps=3, ranks=ranks)
    return [trainer.update(batch).loss for _ in range(3)]


@pytest.mark.parametrize("kind", OTHERS)
def test_other_architectures(group: Group, kind: str) -> None:
    batch = ragged(LENGTHS, 5)
    alone = group(1).ask(other, kind, batch)[0]
    for losses in group(2).ask(other, kind, batch):
        assert losses == pytest.approx(alone, abs=1e-5)


@gathered
def replay(
    ranks: Ranks, batch: Batch, config: TrainerConfig, layout: ParallelDims | None = None
) -> tuple[StepStats, dict[str, Tensor]]:
    ranks = ranks if layout is None else in_layout(ranks, layout)
    trainer = LocalTrainer(moe_model(), config, total_steps=1, ranks=ranks)
    gradients = caught(trainer)
    return trainer.update(batch), gradients


@pytest.fixture(scope="module")
def routed_batch() -> Batch:
    return sampled_batch(moe_model())


@pytest.mark.parametrize("options", [{}, {"sequence": 2}, {"replicate": 2}])
def test_recorded_experts_are_replayed_on_every_rank(
    group: Group, routed_batch: Batch, options: dict[str, int]
) -> None:
    """The routers nearly tie, so without the record some tokens would go to other experts."""
    layout = ParallelDims(size=2, timeout_s=30, **options)
    alone, expected = replay(SINGLE, routed_batch, CONFIG)
    for checkpointing in (False, True):
        config = CONFIG.model_copy(update={"activation_checkpointing": checkpointing})
        for stats, gradients in group(2).ask(replay, routed_batch, config, layout):
            assert stats.gap_max < 1e-5
            assert stats.loss == pytest.approx(alone.loss, abs=1e-6)
            for name, gradient in expected.items():
                torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-6)


@gathered
def untied(ranks: Ranks, batch: Batch, config: TrainerConfig) -> Update:
    return update(ranks, batch, config, torch.float64, tied=False)


def test_heads_of_their_own(group: Group) -> None:
    batch = ragged(LENGTHS, 7)
    expected = reference(batch, tied=False)
    assert "lm_head.weight" in expected.gradients
    for result in group(2).ask(untied, batch, CONFIG):
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(result.gradients[name], gradient, rtol=1e-9, atol=1e-12)


def test_twenty_steps_are_the_same_on_any_number_of_ranks(group: Group) -> None:
    batches = [ragged(LENGTHS, seed) for seed in range(20)]
    config = TrainerConfig(lr=1e-2, token_budget=30, ratio_band=CONFIG.ratio_band)
    losses, weights = group(1).ask(steps, batches, config)[0]
    for size in (2, 3):
        for theirs, their_weights in group(size).ask(steps, batches, config):
            assert theirs == pytest.approx(losses, abs=1e-5)
            for name, weight in weights.items():
                difference = (their_weights[name] - weight).norm() / weight.norm()
                assert difference < 1e-5, name
