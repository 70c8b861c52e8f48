"""The clipped surrogate (PPO, arXiv:1707.06347, eq. 7; asymmetric: arXiv:2503.14476)."""

import torch
from torch import Tensor

from agentrl.trainer.algorithms.ratios import clipped_minimum, log_ratios
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens


def clip(
    logprobs_K: Tensor, tokens: TrainedTokens, *, low: float = 0.2, high: float = 0.2
) -> tuple[Tensor, Statistics]:
    """PPO: minus the sum of w * min(r * A, max(1 - low, min(r, 1 + high)) * A), r the ratio.

    A token that has moved far enough in its advantage's direction has no gradient any more; one
    that has moved the wrong way is always pulled back. A = 1: a ratio of 1.1 gives -1.1, one of 1.5
    gives -1.2 with gradient 0, one of 0.5 gives -0.5.
    """
    ratio_K = torch.exp(log_ratios(logprobs_K, tokens))
    surrogate_K, outside_K = clipped_minimum(ratio_K, tokens.advantages_K, low=low, high=high)
    return -(tokens.weights_K * surrogate_K).sum(), {"clip_fraction": outside_K.sum()}
