"""The ratio as a clipped weight, no reason to drop a token (CISPO, arXiv:2506.13585, eq. 4)."""

import torch
from torch import Tensor

from agentrl.trainer.algorithms.ratios import finite_logprobs, log_ratios
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens


def cispo(
    logprobs_K: Tensor, tokens: TrainedTokens, *, low: float = 1.0, high: float = 4.0
) -> tuple[Tensor, Statistics]:
    """Minus the sum of w * sg(clip(ratio, 1 - low, 1 + high)) * A * log p.

    The clipped ratio is a constant, so every token keeps a gradient: rare tokens whose ratio leaves
    the range, often those at which reasoning turns, are not lost. The lower bound is open (0), as
    in the paper. A = 1 and a ratio of 10 give a gradient of -5.
    """
    ratio_K = torch.exp(log_ratios(logprobs_K, tokens)).detach()
    weight_K = ratio_K.clamp(1 - low, 1 + high)
    total = -(tokens.weights_K * weight_K * tokens.advantages_K * finite_logprobs(logprobs_K)).sum()
    return total, {"clip_fraction": (weight_K != ratio_K).sum()}
