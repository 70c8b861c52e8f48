"""A cost that is kept below a limit by a Lagrange multiplier (Safe RLHF, arXiv:2310.12773, 3.3).

Suffixes: E episodes, U turns of them all.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentrl.config.nearest import nearest
from agentrl.errors import RunError
from agentrl.trainer.algorithms.advantage import checked_rewards
from agentrl.trainer.config import CostConfig
from agentrl.types import Batch, Json

_LARGEST: Final = 100.0
"""Of the multiplier, and 1 over it the smallest: far enough to count for all or for nothing."""


class Constraint:
    """`trainer.cost` on each batch: its costs, and the multiplier that they have moved.

    log m is raised by rate * m * (mean cost - limit), which is the rate times the gradient of
    m * (mean cost - limit) by log m (eq. 31): above the limit the cost comes to count for
    more. Costs of 0.75 against a limit of 0.25 move a multiplier of 1 at rate 0.2 to e^0.1.
    """

    def __init__(self, config: CostConfig) -> None:
        self._config = config
        self._log_multiplier = math.log(config.multiplier)
        self._is_known = False

    def __call__(self, batch: Batch) -> Batch:
        """The batch with costs and multiplier.

        Raises RunError if the scores have no such part, and have had none before.
        """
        config = self._config
        self._is_known = self._is_known or config.part in batch.parts_E
        if not self._is_known:
            raise RunError(
                f"trainer.cost.part: the scores have no part {config.part!r}, "
                f"{nearest(config.part, batch.parts_E)}"
            )
        costs_E = self.attach(batch).costs_E
        if costs_E is not None and len(costs_E):
            excess = float(costs_E.mean()) - config.limit
            moved = self._log_multiplier + config.rate * math.exp(self._log_multiplier) * excess
            self._log_multiplier = min(max(moved, -math.log(_LARGEST)), math.log(_LARGEST))
        return self.attach(batch)

    def attach(self, batch: Batch) -> Batch:
        """The same, but the costs move nothing; who has no such part costs nothing."""
        nothing_E = np.zeros(len(batch.rewards_E))
        costs_E = checked_rewards(batch.parts_E.get(self._config.part, nothing_E))
        return replace(batch, costs_E=costs_E, multiplier=math.exp(self._log_multiplier))

    def state(self) -> Json:
        """The multiplier's logarithm, and if the scores have had the part."""
        return [self._log_multiplier, self._is_known]

    def load(self, state: Json) -> None:
        """Go on with a multiplier."""
        assert isinstance(state, list)
        self._log_multiplier, self._is_known = float(str(state[0])), bool(state[1])


def costs_as_rewards(batch: Batch) -> Batch:
    """The batch as an estimator takes it for the advantages of the costs.

    A cost is booked on the last turn of its episode; values are those of the costs. Raises RunError
    without costs.
    """
    if batch.costs_E is None:
        raise RunError("the batch has no costs; set trainer.cost.part to a part of the score")
    turn_costs_U: NDArray[np.float64] | None = None
    if batch.turn_rewards_U is not None and batch.turn_offsets_E1 is not None:
        turn_costs_U = np.zeros(len(batch.turn_rewards_U))
        has_turn_E = np.diff(batch.turn_offsets_E1) > 0
        turn_costs_U[batch.turn_offsets_E1[1:][has_turn_E] - 1] = batch.costs_E[has_turn_E]
    return replace(
        batch,
        rewards_E=batch.costs_E,
        turn_rewards_U=turn_costs_U,
        token_rewards_N=None,
        values_N=batch.cost_values_N,
    )
