"""One update: against the slow reference, for any split; what is refused; what is skipped."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from agentrl.trainer import ClipConfig, RatioBandConfig, StepStats, TrainerConfig
from agentrl.trainer.trainer import Trainer
from agentrl.types import Batch
from tests.unit.trainer.batches import (
    batch_of,
    on_policy,
    plain_logprobs,
    random_segments,
    tiny_model,
)

WIDE = RatioBandConfig(mean=1e9, max=1e9)
LENGTHS = (20, 7, 19, 3, 18, 33, 4, 4)


def gradients(model: LlamaForCausalLM, batch: Batch, config: TrainerConfig) -> dict[str, Tensor]:
    """What the optimizer gets, caught just before its step."""
    caught: dict[str, Tensor] = {}
    trainer = Trainer(model, config, total_steps=10)

    def catch(*_: object) -> None:
        named = model.named_parameters()
        caught.update({n: p.grad.clone() for n, p in named if p.grad is not None})

    trainer.optimizer.register_step_pre_hook(catch)
    trainer.update(batch)
    return caught


def reference_gradients(
    model: LlamaForCausalLM, batch: Batch, low: float, high: float
) -> dict[str, Tensor]:
    """The whole batch at once, token by token, in plain words."""
    assert batch.advantages_N is not None
    logprobs_N = plain_logprobs(model, batch)
    total = torch.zeros((), dtype=model.dtype)
    count = 0.0
    for r in range(batch.num_rows):
        weight = float(batch.weights_R[r])
        for n in range(batch.row(r).start, batch.row(r).stop):
            if batch.mask_N[n]:
                advantage = float(batch.advantages_N[n])
                ratio = torch.exp(logprobs_N[n] - float(batch.logprobs_N[n]))
                clipped = torch.clamp(ratio, 1 - low, 1 + high)
                total = total - weight * torch.minimum(ratio * advantage, clipped * advantage)
                count += weight
    model.zero_grad()
    torch.autograd.backward(total / count)
    result = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return result


@pytest.mark.parametrize("token_budget", [1, 25, 60, 10_000])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6, 7), (7, 2, 5, 0, 6, 1, 4, 3)])
def test_gradient_is_that_of_the_unsplit_batch(token_budget: int, order: tuple[int, ...]) -> None:
    segments = random_segments(LENGTHS)
    advantages = (1.0, -0.5, 0.3, 0.0, -2.0, 0.7, 1.5, -1.0)
    weights = (1.0, 0.5, 1.0, 1.0, 0.25, 1.0, 0.0, 2.0)
    batch = batch_of(
        [segments[i] for i in order],
        advantages=[advantages[i] for i in order],
        weights=[weights[i] for i in order],
        temperature=0.8,
    )
    model = tiny_model(dtype=torch.float64)
    expected = reference_gradients(model, batch, low=0.2, high=0.3)
    config = TrainerConfig(
        token_budget=token_budget,
        clip=ClipConfig(low=0.2, high=0.3),
        max_grad_norm=1e9,
        ratio_band=WIDE,
    )
    got = gradients(model, batch, config)
    assert got.keys() == expected.keys()
    for name, grad in got.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-12)


def test_on_policy_update_reports_a_ratio_of_one_and_learns() -> None:
    model = tiny_model()
    segments = random_segments((12, 9, 15, 11))
    batch = on_policy(model, segments, advantages=(1, -1, 1, -1))
    before = plain_logprobs(model, batch).detach()
    stats = Trainer(model, TrainerConfig(lr=1e-2), total_steps=1).update(batch)
    assert isinstance(stats, StepStats)
    assert stats.skipped is None
    assert stats.step == 1
    assert stats.ratio_mean == pytest.approx(1, abs=1e-5)
    assert stats.gap_max < 1e-4
    assert stats.num_verified == stats.num_trained == batch.num_trained
    assert stats.verified_share == 1
    assert stats.entropy == pytest.approx(-before[batch.mask_N].mean().item(), rel=1e-5)
    change = (plain_logprobs(model, batch).detach() - before).numpy()
    assert batch.advantages_N is not None
    assert (change * batch.advantages_N).sum() > 0
