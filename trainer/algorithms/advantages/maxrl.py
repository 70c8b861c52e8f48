"""The gradient of the log-likelihood of success (MaxRL, arXiv:2602.02710, section 4)."""

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.trainer.algorithms.advantage import group_advantages, group_means, token_advantages
from agentrl.trainer.algorithms.needs import needs
from agentrl.types import Batch


@needs("group of 2")
def maxrl(batch: Batch) -> NDArray[np.float32]:
    """Rewards less their group's mean, over that mean.

    A_i = (r_i - mean(r)) / mean(r): divided by the success rate the gradient is that of log p, so
    rare successes weigh more than with a deviation. Rewards 1, 0, 0, 0 give 3 and three times -1;
    a group that never succeeds gives 0. Rewards are expected in [0, 1]; raises RunError where they
    differ around a mean that is not above 0.
    """
    centered_E = group_advantages(batch.rewards_E, batch.group_E, scale_by_std=False)
    means_E = group_means(batch.rewards_E, batch.group_E)
    lost_E = (means_E <= 0) & (centered_E != 0)
    if lost_E.any():
        raise RunError(
            f"maxrl: a group's mean reward is {means_E[lost_E][0]:g}, expected a rate of success, "
            "above 0 where rewards differ; take another estimator, such as grpo"
        )
    scaled_E = np.divide(centered_E, means_E, out=np.zeros_like(means_E), where=means_E > 0)
    return token_advantages(batch, scaled_E)
