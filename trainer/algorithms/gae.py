"""Generalized advantage estimation (arXiv:1506.02438, eqs. 16 and 11-12) over an episode's tokens.

A step is one trained token; its state is all that stands before it. What the environment writes
between two turns is part of the next state. Beyond the last token nothing follows, whether the
episode was ended or cut: a budget that cuts it is part of the task.

Suffixes: T trained tokens of one episode in order, N tokens of the batch, U turns of all episodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.types import Batch


def gae(
    rewards_T: NDArray[np.float64], values_T: NDArray[np.float64], *, discount: float, decay: float
) -> NDArray[np.float64]:
    """[T] Sums of (discount * decay)^l * delta_(t+l), delta_t = r_t + discount * V_(t+1) - V_t.

    With a decay of 1 this is the discounted return less the value; with 0, delta itself.
    """
    following_T = np.append(values_T[1:], 0.0)
    advantages_T = rewards_T + discount * following_T - values_T
    for t in range(len(advantages_T) - 2, -1, -1):
        advantages_T[t] += discount * decay * advantages_T[t + 1]
    return advantages_T


def token_rewards(batch: Batch) -> NDArray[np.float64]:
    """[N] Each turn's reward at its last trained token.

    A turn without one gives it to the last trained token before it; if there is none, nothing that
    is trained has led to it and it is left out. Raises RunError without turn rewards.
    """
    if batch.turn_rewards_U is None or batch.turn_offsets_E1 is None:
        raise RunError("the batch has no turn rewards; make it with agentrl.rollout.make_batch")
    rewards_N = np.zeros(batch.num_tokens)
    for episode, trained_T in enumerate(_trained_tokens(batch)):
        start, stop = map(int, batch.turn_offsets_E1[episode : episode + 2])
        turns = np.arange(stop - start)
        last = np.searchsorted(batch.turns_N[trained_T], turns, side="right") - 1
        earned = last >= 0
        np.add.at(rewards_N, trained_T[last[earned]], batch.turn_rewards_U[start:stop][earned])
    return rewards_N


def token_gae(batch: Batch, *, discount: float, decay: float) -> NDArray[np.float64]:
    """[N] Advantages of the trained tokens, 0 elsewhere.

    Raises RunError if the batch has no values, or if a reward or value is not finite.
    """
    if batch.values_N is None:
        raise RunError("the batch has no values; let Trainer.with_values add the critic's first")
    rewards_N = token_rewards(batch)
    values_N = batch.values_N.astype(np.float64)
    advantages_N = np.zeros(batch.num_tokens)
    for trained_T in _trained_tokens(batch):
        advantages_N[trained_T] = gae(
            rewards_N[trained_T], values_N[trained_T], discount=discount, decay=decay
        )
    if not np.isfinite(advantages_N).all():
        raise RunError("a reward or a value of the batch is not finite; check the critic's loss")
    return advantages_N


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae:
    """The estimator of PPO: advantages by GAE, brought to mean 0 over the step's trained tokens."""

    discount: float = 1.0
    decay: float = 0.95
    scale_by_std: bool = True
    """Bring them to a standard deviation of 1 too."""

    needs_critic: ClassVar[bool] = True

    def __call__(self, batch: Batch) -> NDArray[np.float32]:
        """[N] Zero where the mask is false, and everywhere if all of them are equal."""
        advantages_N = token_gae(batch, discount=self.discount, decay=self.decay)
        trained_K = advantages_N[batch.mask_N]
        if len(trained_K):
            trained_K = trained_K - trained_K.mean()
            std = trained_K.std() if self.scale_by_std else 1.0
            advantages_N[batch.mask_N] = trained_K / std if std > 0 else 0.0
        return advantages_N.astype(np.float32)


def _trained_tokens(batch: Batch) -> Iterator[NDArray[np.int64]]:
    """For each episode, where its trained tokens are, in order over all of its segments."""
    episode_N = np.repeat(batch.episode_R, np.diff(batch.offsets_R1))
    for episode in range(len(batch.episode_ids)):
        yield np.flatnonzero(batch.mask_N & (episode_N == episode))
