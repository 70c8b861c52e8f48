"""The trained tokens of a batch, trajectory by trajectory: what an estimator computes over.

A trajectory is what one episode's policy sampled, in order over all of its segments; what the
environment wrote between two turns is left out. Nothing here loops over tokens or episodes.

Suffixes: K trained tokens by trajectory, N tokens of the batch, E episodes, U turns of them all.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.errors import RunError
from agentrl.types import Batch

_ROUNDINGS: Final = 64
"""So many roundings of the largest term may have come together in a sum."""


@dataclass(frozen=True, slots=True)
class Trajectories:
    """Which tokens of a batch belong to which trajectory."""

    batch: Batch
    source: NDArray[np.bool_] | NDArray[np.int64]
    """What picks them out of the batch's tokens, in order: the mask, or places if rows are not."""
    lengths_E: NDArray[np.int64]
    """How many trained tokens each episode has."""

    @classmethod
    def of(cls, batch: Batch) -> "Trajectories":
        """Those of all episodes; rows may stand in any order, an episode's own in theirs."""
        counts = [np.count_nonzero(batch.mask_N[batch.row(r)]) for r in range(batch.num_rows)]
        counts_R = np.array(counts, dtype=np.int64)
        lengths_E = np.zeros(len(batch.rewards_E), dtype=np.int64)
        np.add.at(lengths_E, batch.episode_R, counts_R)
        if np.all(np.diff(batch.episode_R) >= 0):
            return cls(batch, batch.mask_N, lengths_E)
        order = np.argsort(np.repeat(batch.episode_R, counts_R), kind="stable")
        return cls(batch, np.flatnonzero(batch.mask_N)[order], lengths_E)

    @property
    def starts_E(self) -> NDArray[np.int64]:
        """Where each trajectory begins among the K tokens."""
        return np.cumsum(self.lengths_E) - self.lengths_E

    def put(self, values_K: ArrayLike) -> NDArray[np.float32]:
        """[N] The values at their tokens, 0 elsewhere."""
        values_N = np.zeros(self.batch.num_tokens, dtype=np.float32)
        values_N[self.source] = values_K
        return values_N

    def turns_K(self) -> NDArray[np.int32]:
        """The turn of each token, counted over the turns of all episodes.

        Raises RunError without turn rewards.
        """
        _, offsets_E1 = turn_rewards(self.batch)
        turn_K = np.repeat(offsets_E1[:-1].astype(np.int32), self.lengths_E)
        turn_K += self.batch.turns_N[self.source]
        return turn_K

    def rewards_K(self) -> NDArray[np.float64]:
        """Each turn's reward at its last trained token, 0 elsewhere, as `add_rewards` has it."""
        rewards_K = np.zeros(int(self.lengths_E.sum()))
        self.add_rewards(rewards_K)
        return rewards_K

    def add_rewards(self, values_K: NDArray[np.float64]) -> None:
        """Add each turn's reward to the value of its last trained token, and tokens' own to theirs.

        A turn without one gives it to the last trained token before it; if there is none, nothing
        that is trained has led to it and it is left out. Raises RunError without turn rewards.
        """
        rewards_U, offsets_E1 = turn_rewards(self.batch)
        if not np.isfinite(rewards_U).all():
            raise RunError("a reward of a turn is not finite; check the environment's rewards")
        last_U = np.searchsorted(self.turns_K(), np.arange(len(rewards_U)), side="right") - 1
        earned_U = last_U >= np.repeat(self.starts_E, np.diff(offsets_E1))
        places, index = np.unique(last_U[earned_U], return_inverse=True)
        values_K[places] += np.bincount(index, rewards_U[earned_U], len(places))
        if self.batch.token_rewards_N is not None:
            values_K += self.batch.token_rewards_N[self.source]


def turn_rewards(batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The reward of each turn, and where each episode's begin; raises RunError without them."""
    if batch.turn_rewards_U is None or batch.turn_offsets_E1 is None:
        raise RunError("the batch has no turn rewards; make it with agentrl.rollout.make_batch")
    return batch.turn_rewards_U, batch.turn_offsets_E1


def values_of(trajectories: Trajectories) -> NDArray[np.float64]:
    """[K] What the critic expects before each token; raises RunError without a critic's values."""
    if trajectories.batch.values_N is None:
        raise RunError("the batch has no values; let Trainer.with_outputs add the critic's first")
    return trajectories.batch.values_N[trajectories.source].astype(np.float64)


def whiten(
    values_K: NDArray[np.float64], *terms: NDArray[np.floating], scale: bool = True
) -> NDArray[np.float64]:
    """Brought to mean 0 and a (population) deviation of 1; all 0 where nothing sets them apart.

    `terms` are what the values were added up from. What is left where these cancel each other is
    rounding, of their own number format or of the sums, and would be brought to 1 like anything.
    """
    if not len(values_K):
        return values_K
    noise = max(
        _ROUNDINGS * float(np.finfo(np.result_type(t, np.float32)).eps * np.abs(t).max(initial=0))
        for t in terms
    )
    centered_K: NDArray[np.float64] = values_K - values_K.mean()
    with np.errstate(over="ignore"):
        std = math.sqrt(float(np.dot(centered_K, centered_K)) / len(centered_K))
    if math.isinf(std):
        raise RunError("rewards or values are too large to be brought to one scale; divide them")
    if std <= noise:
        return np.zeros_like(values_K)
    if scale:
        centered_K /= std
    return centered_K
