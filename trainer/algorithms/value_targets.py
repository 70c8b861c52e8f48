"""What a critic learns: the returns that followed, by trajectories, which ranks do not have whole.

Suffixes: N tokens of the batch, K trained tokens of its trajectories.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.advantages.gae import gae_sums
from agentrl.trainer.algorithms.constraint import costs_as_rewards
from agentrl.trainer.algorithms.trajectories import Trajectories
from agentrl.trainer.config import CriticConfig
from agentrl.types import Batch


def with_targets(batch: Batch, config: CriticConfig) -> Batch:
    """The batch with what its values should have been, and those of costs if it has them."""
    costs_N = None
    if batch.cost_values_N is not None:
        costs_N = _find_targets(costs_as_rewards(batch), config)
    return replace(batch, targets_N=_find_targets(batch, config), cost_targets_N=costs_N)


def _find_targets(batch: Batch, config: CriticConfig) -> NDArray[np.float32]:
    assert batch.values_N is not None
    tokens = Trajectories.of(batch)
    sums_K = gae_sums(tokens, discount=config.discount, decay=config.target_decay)
    return tokens.put(sums_K + batch.values_N[tokens.source])


def explained_share(batch: Batch, config: CriticConfig) -> float:
    """1 less the mean squared error of the batch's values over its targets' variance."""
    targets_N, values_N = _find_targets(batch, config), batch.values_N
    assert values_N is not None
    targets_K = targets_N[batch.mask_N].astype(np.float64)
    spread = float(targets_K.var())
    return 1 - float(((targets_K - values_N[batch.mask_N]) ** 2).mean()) / spread if spread else 0.0
