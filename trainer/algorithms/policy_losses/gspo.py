"""One ratio for a whole sequence (GSPO, arXiv:2507.18071, eqs. 5 and 7)."""

import torch
from torch import Tensor

from agentrl.trainer.algorithms.ratios import clipped_minimum, log_ratios, row_means
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens


def gspo(
    logprobs_K: Tensor, tokens: TrainedTokens, *, low: float = 3e-4, high: float = 4e-4
) -> tuple[Tensor, Statistics]:
    """PPO's clipped surrogate with s = (p(row) / p_behavior(row))^(1 / length), at each token.

    A sequence is a row: what of one segment of an episode was sampled. The token form is taken,
    whose value at a token is s and whose gradient is s at each of the row's tokens, so advantages
    may differ from token to token. Log ratios of 0.1 and -0.1 in one row: s = 1, nothing clipped.
    """
    log_ratio_K = log_ratios(logprobs_K, tokens)
    mean_K = row_means(log_ratio_K.detach(), tokens)
    ratio_K = torch.exp(mean_K + log_ratio_K - log_ratio_K.detach())
    surrogate_K, outside_K = clipped_minimum(ratio_K, tokens.advantages_K, low=low, high=high)
    return -(tokens.weights_K * surrogate_K).sum(), {"clip_fraction": outside_K.sum()}
