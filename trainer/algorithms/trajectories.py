"""The trained tokens of a batch, trajectory by trajectory: what an estimator computes over.

A trajectory is what one episode's policy sampled, in order over all of its segments; what the
environment wrote between two turns is left out. Nothing here loops over tokens or episodes.

Suffixes: K trained tokens by trajectory, N tokens of the batch, E episodes, U turns of them all.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.errors import RunError
from agentrl.types import Batch


@dataclass(frozen=True, slots=True)
class Trajectories:
    """Which tokens of a batch belong to which trajectory."""

    batch: Batch
    source_K: NDArray[np.int64]
    """Where in the batch each is."""
    lengths_E: NDArray[np.int64]
    """How many trained tokens each episode has."""

    @classmethod
    def of(cls, batch: Batch) -> "Trajectories":
        """Those of all episodes; rows may stand in any order, an episode's own in theirs."""
        source_K = np.flatnonzero(batch.mask_N)
        counts_R = np.diff(np.searchsorted(source_K, batch.offsets_R1))
        num_episodes = len(batch.rewards_E)
        lengths_E = np.zeros(num_episodes, dtype=np.int64)
        np.add.at(lengths_E, batch.episode_R, counts_R)
        if np.any(np.diff(batch.episode_R) < 0):
            episode_K = np.repeat(batch.episode_R, counts_R)
            source_K = source_K[np.argsort(episode_K, kind="stable")]
        return cls(batch, source_K, lengths_E)

    @property
    def starts_E(self) -> NDArray[np.int64]:
        """Where each trajectory begins among the K tokens."""
        return np.cumsum(self.lengths_E) - self.lengths_E

    def spread(self, values_E: NDArray[np.float64]) -> NDArray[np.float32]:
        """[N] Each episode's value at its trained tokens, 0 elsewhere."""
        return self.put(np.repeat(values_E, self.lengths_E))

    def put(self, values_K: ArrayLike) -> NDArray[np.float32]:
        """[N] The values at their tokens, 0 elsewhere."""
        values_N = np.zeros(self.batch.num_tokens, dtype=np.float32)
        values_N[self.source_K] = values_K
        return values_N

    def turns_K(self) -> NDArray[np.int64]:
        """The turn of each token, counted over the turns of all episodes.

        Raises RunError without turn rewards.
        """
        _, offsets_E1 = turn_rewards(self.batch)
        first_K = np.repeat(offsets_E1[:-1], self.lengths_E)
        return first_K + self.batch.turns_N[self.source_K]

    def rewards_K(self) -> NDArray[np.float64]:
        """Each turn's reward at its last trained token.

        A turn without one gives it to the last trained token before it; if there is none, nothing
        that is trained has led to it and it is left out. Raises RunError without turn rewards.
        """
        rewards_U, offsets_E1 = turn_rewards(self.batch)
        if not np.isfinite(rewards_U).all():
            raise RunError("a reward of a turn is not finite; check the environment's rewards")
        last_U = np.searchsorted(self.turns_K(), np.arange(len(rewards_U)), side="right") - 1
        earned_U = last_U >= np.repeat(self.starts_E, np.diff(offsets_E1))
        rewards_K = np.zeros(len(self.source_K))
        np.add.at(rewards_K, last_U[earned_U], rewards_U[earned_U])
        return rewards_K


def turn_rewards(batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The reward of each turn, and where each episode's begin; raises RunError without them."""
    if batch.turn_rewards_U is None or batch.turn_offsets_E1 is None:
        raise RunError("the batch has no turn rewards; make it with agentrl.rollout.make_batch")
    return batch.turn_rewards_U, batch.turn_offsets_E1


def values_of(trajectories: Trajectories) -> NDArray[np.float64]:
    """[K] What the critic expects before each token; raises RunError without a critic's values."""
    if trajectories.batch.values_N is None:
        raise RunError("the batch has no values; let Trainer.with_values add the critic's first")
    return trajectories.batch.values_N[trajectories.source_K].astype(np.float64)


def whiten(values_K: NDArray[np.float64], *, scale: bool = True) -> NDArray[np.float64]:
    """Brought to mean 0 and a (population) deviation of 1; all 0 where all are equal."""
    if not len(values_K):
        return values_K
    centered_K = values_K - values_K.mean()
    std = float(centered_K.std()) if scale else 1.0
    if std <= 1e-12 * float(np.abs(values_K).max()):
        return np.zeros_like(values_K)
    whitened_K: NDArray[np.float64] = centered_K / std
    return whitened_K
