"""Rewards as they are: REINFORCE."""

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.advantage import token_advantages
from agentrl.types import Batch


def reinforce(batch: Batch) -> NDArray[np.float32]:
    """The episode's reward at each of its tokens, without a baseline (Williams 1992, section 4).

    A_i = r_i. Rewards of 1 and 0 give 1 and 0: what failed is not trained on at all, which suits a
    policy that succeeds now and then, and does nothing for one that always fails.
    """
    return token_advantages(batch, batch.rewards_E)
