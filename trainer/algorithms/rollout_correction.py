"""Corrections of what was not sampled by the policy that is trained.

The engine computes in other formats and kernels, and its weights may be some updates old, so a
token was sampled by a behavior policy that is not quite the trainer's. With
r_t = p_proximal(token) / p_behavior(token), the trainer's probability before the first update over
the engine's, there are two remedies: *factors* on the loss weights, and *rejection* of what is too
far away. A sequence is a row: what was sampled in one segment of an episode.

Where there are factors, the loss takes its own ratio to the proximal policy, so that the way from
the engine is paid once (decoupled PPO, arXiv:2110.00641, eq. 7); rejection alone leaves it that to
the engine. Ratios stay within e^-20 and e^20; a token to which the trainer gives no probability
has e^-20, whatever the engine gave it.

Suffixes: N tokens of all rows, R rows, E episodes.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.trainer.algorithms.needs import needs
from agentrl.types import Batch

_LARGEST = 20.0
"""Nats: beyond e^20 a ratio says no more, and its square would not be finite."""
_INFINITE = 1e6
"""Nats: stands for an infinite log ratio, of which sums and means can be taken."""


@needs("proximal")
def decoupled(batch: Batch) -> Batch:
    """Each token's weight times r, as it is (decoupled PPO, arXiv:2110.00641, eq. 7).

    factor_t = r_t. The loss keeps the policy near the proximal one, whatever the engine did. Where
    tokens are rare in the engine their factors are large, and so is the gradient's variance. Log
    ratios of 0.2 and -0.1 give 1.22 and 0.90.
    """
    return weighed(batch, token_ratios(batch))


@needs("proximal")
def tis(batch: Batch, *, cap: float = 2.0) -> Batch:
    """Truncated importance sampling by tokens (arXiv:1802.01561, section 4.1).

    factor_t = min(r_t, cap): less variance than r, for a bias that pulls towards the engine. Ratios
    of 0.5, 1 and 7 give 0.5, 1 and 2.
    """
    return weighed(batch, np.minimum(token_ratios(batch), cap))


@needs("proximal")
def mis(batch: Batch, *, cap: float = 2.0) -> Batch:
    """Masked importance sampling by tokens (arXiv:2510.26788, section 4).

    factor_t = r_t, and tokens with r_t > cap are rejected: such a ratio is more often an error of
    the engine than news. Ratios of 0.5, 1 and 7 give 0.5, 1 and nothing.
    """
    ratios_N = token_ratios(batch)
    return weighed(rejecting(batch, ratios_N > cap), ratios_N)


@needs("proximal")
def icepop(batch: Batch, *, low: float = 0.5, high: float = 5.0) -> Batch:
    """Masked on both sides (IcePop, arXiv:2510.18855, section 2.3.2).

    factor_t = r_t, and tokens outside low <= r_t <= high are rejected. Ratios of 0.4, 1 and 7 give
    nothing, 1 and nothing. Raises RunError unless they enclose 1.
    """
    ratios_N = token_ratios(batch)
    return weighed(rejecting(batch, _mark_outside_band("icepop", ratios_N, low, high)), ratios_N)


@needs("proximal")
def sequence_tis(batch: Batch, *, cap: float = 2.0) -> Batch:
    """Truncated importance sampling by sequences (arXiv:2510.26788, section 4).

    factor_t = min(prod of the row's r, cap) at each token of the row. Uncapped this alone has no
    bias, but its variance grows with the length. Log ratios of 0.5 and 0.1 in one row give
    e^0.6 = 1.82 at both.
    """
    return weighed(batch, np.minimum(sequence_ratios(batch), cap))


@needs("proximal")
def sequence_mis(batch: Batch, *, cap: float = 2.0) -> Batch:
    """Masked importance sampling by sequences (arXiv:2510.26788, section 4).

    factor_t = prod of the row's r, and rows where it is above cap are rejected. Log ratios of 0.5
    and 0.1 in one row give 1.82 at both, those of 0.5 and 0.3 nothing.
    """
    ratios_N = sequence_ratios(batch)
    return weighed(rejecting(batch, ratios_N > cap), ratios_N)


@needs("proximal")
def reject_k1(batch: Batch, *, low: float = 0.99, high: float = 1.01) -> Batch:
    """Rejects rows by the geometric mean of their r (k1; arXiv:2512.23075).

    Kept are rows with low <= exp(mean of log r) <= high: a bound on the divergence of one token,
    whatever the length, where products reject nearly all that is long. There are no factors. Log
    ratios of 0.03 and -0.02 have 1.005 and are kept, 0.03 and 0 have 1.015 and are not. Raises
    RunError unless they enclose 1.
    """
    means_N = _average_rows(batch, log_ratios(batch))
    ratios_N = _exponentiate_clipped(means_N)
    return rejecting(batch, _mark_outside_band("reject_k1", ratios_N, low, high))


@needs("proximal")
def reject_k3(batch: Batch, *, most: float = 0.01) -> Batch:
    """Rejects rows by the mean of r - log r - 1 (k3; arXiv:2512.23075).

    Kept are rows with a mean of at most `most`. Each token's part is at least 0, so errors of both
    signs add up, where those of k1 cancel. There are no factors. Log ratios of 0.1 and -0.1 have a
    mean of 0.005 and are kept, 0.2 and -0.2 have 0.020 and are not.
    """
    log_ratios_N = log_ratios(batch)
    parts_N = _exponentiate_clipped(log_ratios_N) - 1 - log_ratios_N
    return rejecting(batch, _average_rows(batch, parts_N) > most)


def log_ratios(batch: Batch) -> NDArray[np.float64]:
    """[N] log r at trained tokens, 0 elsewhere; raises RunError without proximal logprobs."""
    if batch.proximal_N is None:
        raise RunError("the batch has no proximal logprobs; let Trainer.with_outputs add them")
    with np.errstate(invalid="ignore"):  # both may be minus infinity
        found_N = batch.proximal_N.astype(np.float64) - batch.logprobs_N
    return np.where(batch.mask_N, np.nan_to_num(found_N, nan=-np.inf), 0.0).clip(
        -_INFINITE, _INFINITE
    )


def token_ratios(batch: Batch) -> NDArray[np.float64]:
    """[N] r of each token, 1 where nothing is trained."""
    return _exponentiate_clipped(log_ratios(batch))


def sequence_ratios(batch: Batch) -> NDArray[np.float64]:
    """[N] The product of its row's r, at each token."""
    return _exponentiate_clipped(_sum_rows(batch, log_ratios(batch)))


def weighed(batch: Batch, factors_N: NDArray[np.floating]) -> Batch:
    """The batch with these factors at what is still trained, 0 elsewhere."""
    kept_N = np.where(batch.mask_N, factors_N, 0).astype(np.float32)
    return replace(batch, factors_N=kept_N)


def rejecting(batch: Batch, rejected_N: NDArray[np.bool_]) -> Batch:
    """The batch without these tokens."""
    return replace(batch, mask_N=batch.mask_N & ~rejected_N)


def count_by_episode(batch: Batch, chosen_N: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[E] How many of the chosen tokens each episode has."""
    counts_R = np.add.reduceat(chosen_N, batch.offsets_R1[:-1], dtype=np.int64)
    counts_E: NDArray[np.float64] = np.zeros(len(batch.rewards_E))
    np.add.at(counts_E, batch.episode_R, counts_R)
    return counts_E


def _sum_rows(batch: Batch, values_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N] The sum over its row, at each token."""
    sums_R: NDArray[np.float64] = np.add.reduceat(values_N, batch.offsets_R1[:-1])
    return np.repeat(sums_R, np.diff(batch.offsets_R1))


def _average_rows(batch: Batch, values_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N] The mean over its row's trained tokens, of values that are 0 at the others."""
    counts_N = _sum_rows(batch, batch.mask_N.astype(np.float64))
    return _sum_rows(batch, values_N) / np.maximum(counts_N, 1)


def _exponentiate_clipped(log_ratios_N: NDArray[np.float64]) -> NDArray[np.float64]:
    found_N: NDArray[np.float64] = np.exp(log_ratios_N.clip(-_LARGEST, _LARGEST))
    return found_N


def _mark_outside_band(
    name: str, ratios_N: NDArray[np.float64], low: float, high: float
) -> NDArray[np.bool_]:
    if not low < 1 < high:
        raise RunError(f"{name}: got low = {low:g} and high = {high:g}, expected 1 between them")
    return (ratios_N < low) | (ratios_N > high)
