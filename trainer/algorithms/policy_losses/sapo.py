"""A soft gate in place of the clip (SAPO, arXiv:2511.20347, eqs. 5 and 6)."""

import torch
from torch import Tensor

from agentrl.trainer.algorithms.ratios import log_ratios
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens


def sapo(
    logprobs_K: Tensor,
    tokens: TrainedTokens,
    *,
    positive: float = 1.0,
    negative: float = 1.05,
) -> tuple[Tensor, Statistics]:
    """Minus the sum of w * A * (4 / t) * sigmoid(t * (ratio - 1)); t by the sign of A.

    The gradient's weight 4 s (1 - s) * ratio is 1 at a ratio of 1 and falls smoothly off it; with a
    larger `negative` bad tokens fall off sooner. A = 1 and a ratio of 1 give 2 with gradient 1.
    """
    ratio_K = torch.exp(log_ratios(logprobs_K, tokens))
    steep_K = torch.where(tokens.advantages_K > 0, positive, negative)
    gate_K = torch.sigmoid(steep_K * (ratio_K - 1))
    total = -(tokens.weights_K * tokens.advantages_K * 4 / steep_K * gate_K).sum()
    return total, {"gate": (4 * gate_K * (1 - gate_K)).detach().sum()}
