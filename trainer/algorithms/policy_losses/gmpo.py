"""The geometric mean of a sequence's ratios, clipped token by token (GMPO, arXiv:2507.20673)."""

import torch
from torch import Tensor

from agentrl.trainer.algorithms.ratios import log_ratios, row_means
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens


def gmpo(
    logprobs_K: Tensor, tokens: TrainedTokens, *, low: float = 0.4, high: float = 0.4
) -> tuple[Tensor, Statistics]:
    """A * exp(mean of the row's log ratios), each first kept within -low and high (eq. 4).

    Bounds are in nats, and act on the side where they make the surrogate smaller, as PPO's do. A
    sequence is a row. A token's gradient is by its own advantage, which in the paper all share. Log
    ratios 0.2 and 0.6 with A > 0: exp(0.3) at both, and only the first has a gradient.
    """
    advantages_K = tokens.advantages_K
    sign_K = torch.sign(advantages_K)
    log_ratio_K = log_ratios(logprobs_K, tokens)
    kept_K = sign_K * torch.minimum(sign_K * log_ratio_K, sign_K * log_ratio_K.clamp(-low, high))
    # Tokens without an advantage have no side; they are left as they are.
    kept_K = torch.where(advantages_K == 0, log_ratio_K, kept_K)
    ratio_K = torch.exp(row_means(kept_K.detach(), tokens) + kept_K - kept_K.detach())
    surrogate_K = advantages_K * ratio_K
    clipped = (kept_K != log_ratio_K).sum()
    return -(tokens.weights_K * surrogate_K).sum(), {"clip_fraction": clipped}
