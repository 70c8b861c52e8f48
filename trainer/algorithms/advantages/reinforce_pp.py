"""Rewards-to-go, brought to one scale over the whole step (REINFORCE++, arXiv:2501.03262)."""

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.advantage import group_advantages
from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.scan import discounted_sums
from agentrl.trainer.algorithms.trajectories import Trajectories, turn_rewards, whiten
from agentrl.types import Batch


@needs("turn rewards")
def reinforce_pp(batch: Batch, *, discount: float = 1.0) -> NDArray[np.float32]:
    """The discounted reward that follows each token, whitened over the step's tokens (eq. 7).

    A_t = (G_t - mean(G)) / std(G), G_t = r_t + discount * G_(t+1). Two episodes of one token with
    rewards 1 and 0 give 1 and -1, whatever groups they are in; equal rewards give 0.
    """
    tokens = Trajectories.of(batch)
    returns_K = discounted_sums(tokens.rewards_K(), tokens.lengths_E, discount)
    return tokens.put(whiten(returns_K, turn_rewards(batch)[0]))


@needs("group of 2")
def reinforce_pp_baseline(batch: Batch) -> NDArray[np.float32]:
    """Rewards less their group's mean, whitened over the step's tokens (section 3.2).

    The baseline is the group's, the scale is the step's: a group of small differences stays small.
    Groups with rewards 1, 0 and 0.1, 0 in episodes of one token give +-1.41 and +-0.14.
    """
    centered_E = group_advantages(batch.rewards_E, batch.group_E, scale_by_std=False)
    tokens = Trajectories.of(batch)
    return tokens.put(whiten(np.repeat(centered_E, tokens.lengths_E), batch.rewards_E))
