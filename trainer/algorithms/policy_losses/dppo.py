"""A trust region by divergence instead of ratio (DPPO, arXiv:2602.04879, section 4)."""

import torch
from torch import Tensor

from agentrl.trainer.algorithms.ratios import finite_logprobs, log_ratios
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens


def dppo(
    logprobs_K: Tensor, tokens: TrainedTokens, *, most: float = 0.2, ratio_most: float = 20.0
) -> tuple[Tensor, Statistics]:
    """Minus the sum of w * sg(min(ratio, ratio_most)) * A * log p, within the trust region.

    A token is left out once its probability has moved by more than `most` in its advantage's
    direction: the total variation of "this token or another". So a rare token may move by a large
    ratio, and a likely one is stopped at a small one. From 0.5 to 0.8 with A > 0 is left out, from
    0.01 to 0.05 is not, though its ratio is 5.
    """
    ratio_K = torch.exp(log_ratios(logprobs_K, tokens)).detach().clamp(max=ratio_most)
    moved_K = torch.exp(logprobs_K.detach()) - torch.exp(tokens.old_K)
    outside_K = moved_K * torch.sign(tokens.advantages_K) > most
    kept_K = torch.where(outside_K, torch.zeros_like(ratio_K), ratio_K)
    total = -(tokens.weights_K * kept_K * tokens.advantages_K * finite_logprobs(logprobs_K)).sum()
    return total, {"clip_fraction": outside_K.sum()}
