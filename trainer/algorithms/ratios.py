"""Importance ratios of a micro-batch's tokens and of its rows.

Suffixes: K trained tokens, R rows of the batch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part only.

import torch
from torch import Tensor

from agentrl.trainer.algorithms.trained_tokens import TrainedTokens

_LARGEST = 20.0
"""Nats: beyond e^20 a ratio says no more, and its square would not be finite."""


IMPOSSIBLE = -1e4
"""Nats: e^-10000 is 0 in any number format, and its sums stay finite."""


def log_ratios(logprobs_K: Tensor, tokens: TrainedTokens) -> Tensor:
    """[K] Policy less old one, kept within e^-20 and e^20 with the gradient that it has there."""
    log_ratio_K = finite_logprobs(logprobs_K) - finite_logprobs(tokens.old_K)
    return log_ratio_K - (log_ratio_K - log_ratio_K.clamp(-_LARGEST, _LARGEST)).detach()


def finite_logprobs(logprobs_K: Tensor) -> Tensor:
    """[K] Those of what cannot be are a very small number, without a gradient."""
    return logprobs_K.clamp(min=IMPOSSIBLE)


def row_means(values_K: Tensor, tokens: TrainedTokens) -> Tensor:
    """[K] The mean over its row's trained tokens, at each of them, whichever ranks have them."""
    terms_2K = torch.stack([values_K, torch.ones_like(values_K)])
    sums_2R = values_K.new_zeros(2, tokens.batch.num_rows).index_add(1, tokens.row_K, terms_2K)
    sums_R, counts_R = tokens.sum_pieces(sums_2R)
    means_K: Tensor = (sums_R / counts_R.clamp(min=1))[tokens.row_K]
    return means_K


def clipped_minimum(
    ratio_K: Tensor, advantages_K: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """min(ratio * A, clip(ratio, 1 - low, 1 + high) * A), and which tokens have no gradient."""
    clipped_K = ratio_K.clamp(1 - low, 1 + high)
    outside_K = torch.where(advantages_K > 0, ratio_K > 1 + high, ratio_K < 1 - low)
    outside_K = outside_K & (advantages_K != 0)
    return torch.minimum(ratio_K * advantages_K, clipped_K * advantages_K), outside_K
