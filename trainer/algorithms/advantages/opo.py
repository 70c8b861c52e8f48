"""The baseline of least variance (OPO, arXiv:2505.23585, eq. 9)."""

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.advantage import checked_rewards, group_ranges, token_advantages
from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.trajectories import Trajectories
from agentrl.types import Batch
from agentrl.types.batch import are_equal


@needs("group of 2")
def opo(batch: Batch) -> NDArray[np.float32]:
    """Each reward less the mean of its group's, weighed by their numbers of trained tokens.

    A_i = r_i - sum_j l_j r_j / sum_j l_j: the variance of a gradient grows with the length of what
    was sampled. Rewards 1 and 0 of 30 and 10 tokens give 0.25 and -0.75. A group in which nothing
    is trained, and equal rewards, give 0.
    """
    rewards_E = checked_rewards(batch.rewards_E)
    tokens = Trajectories.of(batch)
    _, index_E = np.unique(batch.group_E, return_inverse=True)
    low_G, high_G = group_ranges(rewards_E, index_E)
    # From the group's lowest reward on, so that equal ones are exactly 0.
    above_E = np.where(are_equal(low_G, high_G)[index_E], 0.0, rewards_E - low_G[index_E])
    length_G = np.bincount(index_E, tokens.lengths_E)
    baseline_G = np.bincount(index_E, tokens.lengths_E * above_E) / np.maximum(length_G, 1)
    return token_advantages(batch, above_E - baseline_G[index_E])
