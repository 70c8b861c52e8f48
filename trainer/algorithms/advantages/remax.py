"""What sampling gains over the greedy answer (ReMax, arXiv:2310.10505, algorithm 2)."""

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.trainer.algorithms.advantage import checked_rewards, token_advantages
from agentrl.trainer.algorithms.needs import needs
from agentrl.types import Batch
from agentrl.types.batch import are_equal


@needs("greedy member")
def remax(batch: Batch) -> NDArray[np.float32]:
    """Each reward less that of the group's greedy member, which is never trained on.

    A_i = r_i - r_greedy. Rewards 1 and 0 give 1 and 0 where the greedy answer failed, 0 and -1
    where it succeeded. A group whose greedy member has no score gets 0, as does a reward
    that is equal to its reward. Raises RunError without greedy members.
    """
    if batch.greedy_E is None:
        raise RunError("the batch has no greedy members; set rollout.greedy_member to true")
    rewards_E, greedy_E = checked_rewards(batch.rewards_E), batch.greedy_E
    equal_E = are_equal(np.minimum(rewards_E, greedy_E), np.maximum(rewards_E, greedy_E))
    return token_advantages(
        batch, np.where(np.isnan(greedy_E) | equal_E, 0.0, rewards_E - greedy_E)
    )
