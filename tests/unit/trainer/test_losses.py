"""Losses against numbers worked out by hand and closed forms on a vocabulary of three tokens."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from agentrl.trainer.algorithms.kl import k2, k3
from agentrl.trainer.algorithms.policy_losses.clip import clip
from tests.unit.trainer.rows import one_row

DOUBLE = torch.float64


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0),
        (1.0, -2.0, 2.0, 2.0, 0),
        (1.1, 1.0, -1.1, -1.1, 0),
        (1.5, 1.0, -1.3, 0.0, 1),  # too far up already
        (0.5, 1.0, -0.5, -0.5, 0),  # a good token that became unlikely still pulls
        (0.5, -1.0, 0.8, 0.0, 1),  # too far down already
        (1.5, -1.0, 1.5, 1.5, 0),  # a bad token that became likely still pushes
        (1.5, 0.0, 0.0, 0.0, 0),
    ],
)
def test_clipped_surrogate_by_hand(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: int
) -> None:
    logprobs = tensor(math.log(ratio) - 1).requires_grad_()
    total, found = clip(logprobs, one_row([-1], [advantage]), low=0.2, high=0.3)
    torch.autograd.backward(total)
    assert total.item() == pytest.approx(loss)
    assert logprobs.grad is not None
    # The derivative by a logprob is the ratio times that by the ratio.
    assert logprobs.grad.item() == pytest.approx(gradient)
    assert found == {"clip_fraction": clipped}


def test_the_loss_is_a_weighted_sum() -> None:
    logprobs = tensor(-1, -1, -1)
    total, _ = clip(logprobs, one_row([-1, -1, -1], [1, 2, 4], [1, 0.5, 0]))
    assert total.item() == -2.0


def test_policy_gradient_raises_a_good_token_and_lowers_a_bad_one() -> None:
    for advantage, sign in ((1.0, 1), (-1.0, -1)):
        logits = tensor(0.3, -0.2, 0.5).requires_grad_()
        logprobs = torch.log_softmax(logits, 0)[1:2]
        total, _ = clip(logprobs, one_row([logprobs.item()], [advantage]))
        torch.autograd.backward(total)
        assert logits.grad is not None
        probs = torch.softmax(logits.detach(), 0)
        expected = -advantage * (tensor(0, 1, 0) - probs)
        torch.testing.assert_close(logits.grad, expected)
        assert torch.sign(-logits.grad[1]).item() == sign


def test_k3_is_the_divergence_in_expectation() -> None:
    policy, reference = tensor(0.7, 0.2, 0.1), tensor(0.3, 0.3, 0.4)
    kl = (policy * (policy / reference).log()).sum()
    estimate = (policy * k3(policy.log(), reference.log())).sum()
    assert estimate.item() == pytest.approx(kl.item())
    assert kl.item() > 0.1


def test_k3_is_zero_only_where_both_agree_and_never_negative() -> None:
    logprobs = tensor(-3, -1, -0.5)
    assert k3(logprobs, logprobs).tolist() == [0, 0, 0]
    assert (k3(logprobs, logprobs + tensor(0.1, -0.1, 3)) > 0).all()
    assert k3(tensor(-1), tensor(-1 + math.log(2))).item() == pytest.approx(1 - math.log(2))


def test_the_gradients_of_the_estimators_are_those_of_their_divergences() -> None:
    reference = torch.log_softmax(tensor(0.4, -1, 0.2), 0)

    def gradient(loss: Callable[[Tensor], Tensor]) -> Tensor:
        logits = tensor(1, 0.3, -0.5).requires_grad_()
        torch.autograd.backward(loss(torch.log_softmax(logits, 0)))
        assert logits.grad is not None
        return logits.grad

    def sampled(estimate: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Of its mean over the policy's samples, which do not move."""
        return gradient(lambda p: (p.detach().exp() * estimate(p, reference)).sum())

    towards = gradient(lambda p: (p.exp() * (p - reference)).sum())
    away = gradient(lambda p: (reference.exp() * (reference - p)).sum())
    torch.testing.assert_close(sampled(torch.sub), torch.zeros_like(towards))
    torch.testing.assert_close(sampled(k2), towards)
    torch.testing.assert_close(sampled(k3), away)
    assert not torch.allclose(towards, away, atol=1e-2)


def test_descending_the_penalty_moves_towards_the_reference() -> None:
    reference = torch.log_softmax(tensor(0, 0, 2), 0)
    logits = tensor(1, 0, 0).requires_grad_()
    logprobs = torch.log_softmax(logits, 0)
    torch.autograd.backward((logprobs.detach().exp() * k3(logprobs, reference)).sum())
    assert logits.grad is not None

    def divergence(values: Tensor) -> float:
        policy = torch.log_softmax(values, 0)
        return float((policy.exp() * (policy - reference)).sum())

    assert logits.grad[0] > 0  # likelier than in the reference: goes down
    assert logits.grad[2] < 0  # less likely than in the reference: goes up
    assert divergence(logits.detach() - 0.1 * logits.grad) < divergence(logits.detach())
