"""Tokens at which entropy is lost are held back (Clip-Cov and KL-Cov, arXiv:2505.22617, section 4).

Where a likely token has a large advantage, (log p - mean) * (A - mean) is large, and the policy's
entropy falls. The paper takes the log p of the policy as it is at each update; that of the other
micro-batches and ranks is not known without one more pass over all of them. So which tokens these
are is decided over the whole batch of an update, by the log p from before the step's first one: no
micro-batch, rank or order of rows changes it.

Suffixes: K trained tokens of a micro-batch, M those of the batch, N all of its tokens.
"""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.errors import RunError
from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.ratios import IMPOSSIBLE, clipped_minimum, log_ratios
from agentrl.trainer.algorithms.trained_tokens import Statistics, TrainedTokens


@needs("all rows")
def clip_cov(
    logprobs_K: Tensor,
    tokens: TrainedTokens,
    *,
    low: float = 0.2,
    high: float = 0.2,
    share: float = 2e-4,
    least: float = 1.0,
    most: float = 5.0,
) -> tuple[Tensor, Statistics]:
    """PPO's clipped surrogate without a share of the tokens of high covariance (after eq. 9).

    Of those with (log p_0 - mean) * (A - mean) between `least` and `most`, so many are drawn that
    they are `share` of all trained tokens, at least one: they count nothing. Equal batches draw
    equal tokens. p_0 is the policy that sampled (the trainer's own p where a pass took it);
    the paper has the p of each update, so both agree on the first update of a step, not later.
    """
    if least >= most:
        raise RunError(f"clip_cov: got least = {least:g}, expected less than most = {most:g}")
    covariance_M, source_M = covariances(tokens)
    among = np.flatnonzero((covariance_M > least) & (covariance_M < most))
    number = min(max(1, int(share * len(source_M))), len(among))
    # Marks follow from contents alone, so they draw by chance and whatever order rows are in.
    drawn = np.argsort(tokens.batch.marks_N[source_M[among]], kind="stable")[:number]
    held_K = _mark_tokens_at_batch_places(source_M[among[drawn]], tokens)
    ratio_K = torch.exp(log_ratios(logprobs_K, tokens))
    surrogate_K, outside_K = clipped_minimum(ratio_K, tokens.advantages_K, low=low, high=high)
    surrogate_K = torch.where(held_K, torch.zeros_like(surrogate_K), surrogate_K)
    found = {"clip_fraction": outside_K.sum(), "held_back": held_K.sum()}
    return -(tokens.weights_K * surrogate_K).sum(), found


@needs("all rows")
def kl_cov(
    logprobs_K: Tensor, tokens: TrainedTokens, *, share: float = 2e-4, coef: float = 1.0
) -> tuple[Tensor, Statistics]:
    """The ratio times A, with a penalty on the `share` of highest covariance (after eq. 10).

    The penalty is `coef` * |log p - log p_behavior| at those tokens, at least one; it has no
    gradient before the policy has moved. They are those of the highest (log p_0 - mean) *
    (A - mean), p_0 the policy that sampled (the trainer's own p where a pass took it); the
    paper has the p of each update, so both agree on the first update of a step, not later.
    """
    covariance_M, source_M = covariances(tokens)
    number = min(max(1, int(share * len(source_M))), len(source_M))
    # Equal covariances are told apart by marks, which no order of rows changes.
    size = float(np.abs(covariance_M).max(initial=0.0)) or 1.0
    marks_M = tokens.batch.marks_N[source_M]
    ranked = np.lexsort((marks_M, -np.round(covariance_M / size, 9)))
    held_K = _mark_tokens_at_batch_places(source_M[ranked[:number]], tokens)
    log_ratio_K = log_ratios(logprobs_K, tokens)
    penalty_K = torch.where(held_K, coef * log_ratio_K.abs(), torch.zeros_like(log_ratio_K))
    surrogate_K = torch.exp(log_ratio_K) * tokens.advantages_K - penalty_K
    return -(tokens.weights_K * surrogate_K).sum(), {"held_back": held_K.sum()}


def covariances(tokens: TrainedTokens) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """[M] Each trained token's part of the covariance of logprob and advantage; and its place."""
    source_M = np.flatnonzero(tokens.batch.mask_N)
    advantages_N = tokens.batch.advantages_N
    assert advantages_N is not None
    before_N = tokens.batch.proximal_N
    before_N = tokens.batch.logprobs_N if before_N is None else before_N
    logprobs_M = np.maximum(before_N[source_M].astype(np.float64), IMPOSSIBLE)
    advantages_M = advantages_N[source_M].astype(np.float64)
    if not len(source_M):
        return logprobs_M, source_M
    return (logprobs_M - logprobs_M.mean()) * (advantages_M - advantages_M.mean()), source_M


def _mark_tokens_at_batch_places(sources: NDArray[np.int64], tokens: TrainedTokens) -> Tensor:
    """[K] Which of the micro-batch's tokens are among those of the batch."""
    return torch.from_numpy(np.isin(tokens.source_K, sources)).to(tokens.row_K.device)
