"""Loss and gradients do not depend on how the batch is split, packed or spread over ranks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.trainer.algorithms.normalisations import BUILT_IN as NORMALISATIONS
from agentrl.trainer.config import LoraConfig
from tests.integration.ranks.cases import CONFIG, ragged, reference, steps, update
from tests.integration.ranks.conftest import Group
from tests.unit.trainer.batches import batch_of, random_segments

LOSS = f"{Path(__file__).parents[3]}/examples/extending/loss.py:truncated"


def test_a_loss_of_one_s_own_is_found_by_each_rank(group: Group) -> None:
    config = CONFIG.model_copy(update={"loss": LOSS})
    batch = ragged([12, 3, 30, 7], seed=1)
    [alone] = group(1).ask(update, batch, config, torch.float64)
    assert 0 < alone.stats.loss_statistics["cut"] < 1
    for result in group(2).ask(update, batch, config, torch.float64):
        assert result.stats.loss == pytest.approx(alone.stats.loss, rel=1e-9)
        assert result.stats.loss_statistics == pytest.approx(alone.stats.loss_statistics)


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_each_normalisation_has_one_scale_on_any_number_of_ranks(group: Group, name: str) -> None:
    """Three groups of episodes in one or two segments, micro-batches of one row and of all."""
    plain = batch_of(
        random_segments((20, 7, 19, 3, 18, 33), 1),
        episodes=(0, 0, 1, 2, 3, 3),
        advantages=(1.0, 1.0, -0.5, 0.3, 0.7, 0.7),
    )
    plain = replace(plain, group_E=np.array([0, 1, 1, 2], dtype=np.int32))
    batch = replace(plain, weights_N=NORMALISATIONS[name](plain))
    expected = reference(batch)
    for size, token_budget in ((1, 1), (2, 10_000), (3, 25)):
        config = CONFIG.model_copy(update={"token_budget": token_budget})
        for result in group(size).ask(update, batch, config, torch.float64):
            assert result.stats.loss == pytest.approx(expected.loss, rel=1e-9)
            for parameter, gradient in expected.gradients.items():
                found = result.gradients[parameter]
                torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-12)


def test_mini_batches_are_the_same_on_any_number_of_ranks(group: Group) -> None:
    batch = ragged((20, 7, 19, 3, 18, 33), 2)
    halves = replace(batch, minibatch_E=np.array([1, 0, 0, 1, 0, 1], dtype=np.int32))
    config = CONFIG.model_copy(update={"minibatches": 2, "epochs": 2, "lr": 1e-3})
    [(losses, weights)] = group(1).ask(steps, [halves, batch], config)
    for size in (2, 3):
        for their_losses, theirs in group(size).ask(steps, [halves, batch], config):
            assert their_losses == pytest.approx(losses, rel=1e-4)
            for name, weight in weights.items():
                torch.testing.assert_close(theirs[name], weight, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("lora_rank", [0, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=8),
    seed=st.integers(0, 2**16),
    token_budget=st.sampled_from([1, 25, 60, 10_000]),
    checkpointing=st.booleans(),
    offload=st.booleans(),
    activation_offload=st.booleans(),
)
@settings(max_examples=10)
def test_equals_the_slow_reference(
    group: Group,
    size: int,
    lora_rank: int,
    lengths: list[int],
    seed: int,
    token_budget: int,
    checkpointing: bool,
    offload: bool,
    activation_offload: bool,
) -> None:
    batch = ragged(lengths, seed)
    expected = reference(batch, lora_rank=lora_rank)
    config = CONFIG.model_copy(
        update={
            "token_budget": token_budget,
            "activation_checkpointing": checkpointing,
            "offload": offload,
            "activation_offload": activation_offload,
            "lora": LoraConfig(rank=lora_rank),
        }
    )
    results = group(size).ask(update, batch, config, torch.float64)
    print(f"{size} ranks, rows per rank: {[result.num_rows for result in results]}")
    for result in results:
        assert result.stats.loss == pytest.approx(expected.loss, rel=1e-9, abs=1e-12)
        assert result.stats.loss == results[0].stats.loss
        assert result.stats.entropy == results[0].stats.entropy
        assert result.gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(result.gradients[name], gradient, rtol=1e-9, atol=1e-12)
