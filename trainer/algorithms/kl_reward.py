"""The penalty to the reference in the reward, and a coefficient that keeps it near a target.

Suffixes: N tokens of the batch, E episodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.trainer.config import KlConfig
from agentrl.types import Batch, Json

_MOST_ERROR: Final = 0.2
Terms = Callable[[NDArray[np.float64]], NDArray[np.float64]]
TERMS: Final[Mapping[str, Terms]] = {
    "k1": lambda log_ratio: log_ratio,
    "k2": lambda log_ratio: 0.5 * log_ratio**2,
    "k3": lambda log_ratio: np.expm1(-log_ratio) + log_ratio,
}
"""The estimators of `kl` by log policy - log reference, for arrays."""


def token_divergences(batch: Batch, kind: str) -> NDArray[np.float64]:
    """[N] The penalty of each trained token, 0 elsewhere.

    The trainer's own logprobs are compared, if the batch has them: what engine and trainer compute
    otherwise is no divergence. Raises RunError without what it needs.
    """
    if kind == "exact":
        if batch.divergence_N is None:
            raise RunError("the batch has no divergences; let Trainer.with_outputs add them")
        return np.where(batch.mask_N, batch.divergence_N.astype(np.float64), 0.0)
    if batch.reference_N is None:
        raise RunError("the batch has no reference; let Trainer.with_outputs add its logprobs")
    policy_N = batch.logprobs_N if batch.proximal_N is None else batch.proximal_N
    log_ratio_N = policy_N.astype(np.float64) - batch.reference_N
    return np.where(batch.mask_N, TERMS[kind](np.where(batch.mask_N, log_ratio_N, 0.0)), 0.0)


def with_penalties(batch: Batch, kind: str, coef: float) -> Batch:
    """The batch with -coef * kl_t as a reward of each trained token (arXiv:2203.02155, eq. 2).

    Estimators by tokens see each where it falls; those by episodes see their sum in the return.
    """
    token_rewards_N = -coef * token_divergences(batch, kind)
    episode_N = np.repeat(batch.episode_R, np.diff(batch.offsets_R1))
    sums_E = np.bincount(episode_N, token_rewards_N, len(batch.rewards_E))
    return replace(
        batch, rewards_E=batch.rewards_E + sums_E, token_rewards_N=token_rewards_N, kl_coef=coef
    )


class KlPenalty:
    """`trainer.kl` on each batch: the coefficient of the step, and the penalty in the reward.

    With a target t the coefficient is multiplied after each step by 1 + e / horizon, where
    e = kl / t - 1 within -0.2 and 0.2 (arXiv:1909.08593, section 2.2); kl is the mean over the
    step's tokens, in nats, of k3 or of the divergences themselves where the batch has them.
    """

    def __init__(self, config: KlConfig) -> None:
        self._config = config
        self._coef = config.coef
        self.divergence: float | None = None
        """That of the last batch, before its updates; None without a target."""

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the coefficient, which moves for the next one."""
        config, coef = self._config, self._coef
        if config.target is not None and batch.num_trained:
            kind = "k3" if batch.divergence_N is None else "exact"
            self.divergence = float(token_divergences(batch, kind).sum()) / batch.num_trained
            error = np.clip(self.divergence / config.target - 1, -_MOST_ERROR, _MOST_ERROR)
            self._coef *= 1 + float(np.nan_to_num(error, nan=_MOST_ERROR)) / config.horizon
        if config.where == "loss":
            return replace(batch, kl_coef=coef)
        return with_penalties(batch, config.kind, coef)

    def state(self) -> Json:
        """The coefficient."""
        return self._coef

    def load(self, state: Json) -> None:
        """Go on with a coefficient."""
        self._coef = float(str(state))
