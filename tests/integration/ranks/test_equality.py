"""Loss and gradients do not depend on how the batch is split, packed or spread over ranks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.trainer.config import LoraConfig
from tests.integration.ranks.cases import CONFIG, ragged, reference, update
from tests.integration.ranks.conftest import Group

LOSS = f"{Path(__file__).parents[3]}/examples/extending/loss.py:truncated"


def test_a_loss_of_one_s_own_is_found_by_each_rank(group: Group) -> None:
    config = CONFIG.model_copy(update={"loss": LOSS})
    batch = ragged([12, 3, 30, 7], seed=1)
    [alone] = group(1).call(update, batch, config, torch.float64)
    assert 0 < alone.stats.loss_statistics["cut"] < 1
    for result in group(2).call(update, batch, config, torch.float64):
        assert result.stats.loss == pytest.approx(alone.stats.loss, rel=1e-9)
        assert result.stats.loss_statistics == pytest.approx(alone.stats.loss_statistics)


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
    results = group(size).call(update, batch, config, torch.float64)
    print(f"{size} ranks, rows per rank: {[result.num_rows for result in results]}")
    for result in results:
        assert result.stats.loss == pytest.approx(expected.loss, rel=1e-9, abs=1e-12)
        assert result.stats.loss == results[0].stats.loss
        assert result.stats.entropy == results[0].stats.entropy
        assert result.gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(result.gradients[name], gradient, rtol=1e-9, atol=1e-12)
