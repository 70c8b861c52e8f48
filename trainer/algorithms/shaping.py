"""What an episode's reward becomes before an estimator reads it.

    reward ─▶ less the running mean, over the running deviation ─▶ scaled ─▶ clipped

Suffixes: E episodes, U turns of them all.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.advantage import checked_rewards
from agentrl.trainer.config import RewardScaleConfig
from agentrl.types import Batch, Json
from agentrl.types.batch import are_equal


def shape_rewards(
    batch: Batch, *, shift: float = 0.0, factor: float = 1.0, clip: float = math.inf
) -> Batch:
    """The batch with (r - shift) * factor for each return r, kept within -clip and clip.

    Those of the greedy members are treated alike. Rewards of turns take the factor; what a return
    loses beside it is booked on its last turn, so that they still sum to it. Raises RunError for a
    return that is not finite.
    """

    def shape(returns_E: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip((returns_E - shift) * factor, -clip, clip)

    rewards_E = shape(checked_rewards(batch.rewards_E))
    turn_rewards_U = batch.turn_rewards_U
    if turn_rewards_U is not None and batch.turn_offsets_E1 is not None:
        turn_rewards_U = turn_rewards_U * factor
        has_turn_E = np.diff(batch.turn_offsets_E1) > 0
        last = batch.turn_offsets_E1[1:][has_turn_E] - 1
        turn_rewards_U[last] += (rewards_E - factor * batch.rewards_E)[has_turn_E]
    greedy_E = None if batch.greedy_E is None else shape(batch.greedy_E)
    return replace(batch, rewards_E=rewards_E, turn_rewards_U=turn_rewards_U, greedy_E=greedy_E)


@dataclass(slots=True)
class RunningMoments:
    """Mean and deviation of all returns so far (Chan, Golub and LeVeque 1983, eq. 2.1)."""

    num: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of the squared differences to the mean."""

    def add(self, returns_E: NDArray[np.float64]) -> None:
        """Count a step's returns."""
        if not len(returns_E):
            return
        total, mean = self.num + len(returns_E), float(returns_E.mean())
        apart = mean - self.mean
        self.squares += float(((returns_E - mean) ** 2).sum())
        self.squares += apart**2 * self.num * len(returns_E) / total
        self.mean += apart * len(returns_E) / total
        self.num = total

    @property
    def deviation(self) -> float:
        """The population's; 1 where only rounding sets the returns apart."""
        found = math.sqrt(self.squares / max(1, self.num))
        return 1.0 if are_equal(self.mean, self.mean + found) else found

    def state(self) -> Json:
        """What `load` takes."""
        return [self.num, self.mean, self.squares]

    def load(self, state: Json) -> None:
        """Go on from a state."""
        assert isinstance(state, list)
        num, mean, squares = (float(str(x)) for x in state)
        self.num, self.mean, self.squares = int(num), mean, squares


class RewardShaping:
    """`trainer.reward` on each batch, with the moments of all returns that it has seen."""

    def __init__(self, config: RewardScaleConfig) -> None:
        self._config = config
        self._moments = RunningMoments()
        self.state, self.load = self._moments.state, self._moments.load

    def __call__(self, batch: Batch) -> Batch:
        """The batch with shaped rewards; its own returns count in the moments first."""
        config = self._config
        shift, factor = 0.0, config.scale
        if config.running:
            self._moments.add(checked_rewards(batch.rewards_E))
            shift, factor = self._moments.mean, factor / self._moments.deviation
        clip = math.inf if config.clip is None else config.clip
        return shape_rewards(batch, shift=shift, factor=factor, clip=clip)
