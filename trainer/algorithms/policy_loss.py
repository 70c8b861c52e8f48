"""The clipped policy-gradient loss (PPO, arXiv:1707.06347, eq. 7; asymmetric: arXiv:2503.14476).

Suffix: K trained tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """A sum over tokens; the caller divides once by the global count."""

    total: Tensor
    num_clipped: int
    """Tokens whose gradient is zero because their ratio left the clip range."""


def policy_loss(
    logprobs_K: Tensor,
    behavior_K: Tensor,
    advantages_K: Tensor,
    weights_K: Tensor,
    *,
    low: float,
    high: float,
) -> PolicyLoss:
    """Minus the weighted sum of min(ratio * A, clip(ratio, 1 - low, 1 + high) * A).

    The ratio is exp(policy - behavior), so it is taken to the distribution that really sampled.
    """
    ratio_K = torch.exp(logprobs_K - behavior_K)
    clipped_K = ratio_K.clamp(1 - low, 1 + high)
    surrogate_K = torch.minimum(ratio_K * advantages_K, clipped_K * advantages_K)
    outside_K = torch.where(advantages_K > 0, ratio_K > 1 + high, ratio_K < 1 - low)
    return PolicyLoss(
        total=-(weights_K * surrogate_K).sum(),
        num_clipped=int((outside_K & (advantages_K != 0)).sum()),
    )


def supervised_loss(logprobs_K: Tensor, weights_K: Tensor) -> Tensor:
    """Cross-entropy as a weighted sum: the same tokens with advantage 1 and no ratio."""
    return -(weights_K * logprobs_K).sum()
