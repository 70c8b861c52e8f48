"""Leave-one-out advantages (RLOO, arXiv:2402.14740, eq. 8)."""

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.advantage import group_advantages, token_advantages
from agentrl.trainer.algorithms.needs import needs
from agentrl.types import Batch


@needs("group of 2")
def rloo(batch: Batch) -> NDArray[np.float32]:
    """Each reward less the mean of the *other* members' rewards.

    A_i = r_i - sum_(j != i) r_j / (G - 1), which is G / (G - 1) times Dr. GRPO's: the baseline does
    not contain the member's own reward, so the gradient has no bias. Rewards 1, 0, 0, 0 give 1 and
    three times -1/3. A member without another one gets 0.
    """
    centered_E = group_advantages(batch.rewards_E, batch.group_E, scale_by_std=False)
    _, index_E, size_G = np.unique(batch.group_E, return_inverse=True, return_counts=True)
    others_E = np.maximum(size_G[index_E] - 1, 1)
    return token_advantages(batch, centered_E * size_G[index_E] / others_E)
