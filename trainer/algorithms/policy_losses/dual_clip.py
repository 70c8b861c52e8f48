"""PPO with a second bound for bad tokens (dual clip, arXiv:1912.09729, eq. 5)."""

import torch
from torch import Tensor

from agentrl.errors import RunError
from agentrl.trainer.algorithms.ratios import clipped_minimum, log_ratios
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens


def dual_clip(
    logprobs_K: Tensor,
    tokens: TrainedTokens,
    *,
    low: float = 0.2,
    high: float = 0.2,
    most: float = 3.0,
) -> tuple[Tensor, Statistics]:
    """PPO's clipped surrogate, for A < 0 at least `most` * A.

    A bad token that has become likely by a ratio of r > `most` pushes no harder than `most` does,
    and has no gradient any more. A = -1: r = 2 gives 2 with gradient 2, r = 5 gives 3 with 0.
    """
    if most <= 1:
        raise RunError(f"dual_clip: got most = {most:g}, expected more than 1")
    advantages_K = tokens.advantages_K
    ratio_K = torch.exp(log_ratios(logprobs_K, tokens))
    surrogate_K, outside_K = clipped_minimum(ratio_K, advantages_K, low=low, high=high)
    bounded_K = torch.maximum(surrogate_K, most * advantages_K)
    surrogate_K = torch.where(advantages_K < 0, bounded_K, surrogate_K)
    bound_K = (advantages_K < 0) & (ratio_K > most)
    clipped = (outside_K | bound_K).sum()
    return -(tokens.weights_K * surrogate_K).sum(), {"clip_fraction": clipped}
