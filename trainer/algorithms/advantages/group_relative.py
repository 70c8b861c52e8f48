"""Group-relative advantages: GRPO, and Dr. GRPO without its division."""

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.advantage import group_advantages, token_advantages
from agentrl.trainer.algorithms.needs import needs
from agentrl.types import Batch


@needs("group of 2")
def grpo(batch: Batch, *, scale_by_std: bool = True) -> NDArray[np.float32]:
    """Rewards less their group's mean, over its standard deviation (arXiv:2402.03300, 4.1.2).

    A_i = (r_i - mean(r)) / std(r), with the population's deviation. Rewards 1, 0 give 1 and -1;
    1, 0, 0, 0 give sqrt(3) and three times -1/sqrt(3). Equal rewards, and a group of one, give 0.
    """
    advantages_E = group_advantages(batch.rewards_E, batch.group_E, scale_by_std=scale_by_std)
    return token_advantages(batch, advantages_E)


@needs("group of 2")
def dr_grpo(batch: Batch) -> NDArray[np.float32]:
    """Rewards less their group's mean (Dr. GRPO, arXiv:2503.20783, section 3.2).

    A_i = r_i - mean(r). Without the division, groups that are nearly always solved or failed do not
    weigh more than others. Rewards 1, 0, 0, 0 give 0.75 and three times -0.25; equal ones give 0.
    """
    return grpo(batch, scale_by_std=False)
