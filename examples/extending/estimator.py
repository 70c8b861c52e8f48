import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.advantage import token_advantages
from agentrl.types import Batch


def leave_one_out(batch: Batch) -> NDArray[np.float32]:
    """Each episode's reward less the mean of the others of its group (arXiv:2402.14740)."""
    others_EE = (batch.group_E[:, None] == batch.group_E) & ~np.eye(len(batch.group_E), dtype=bool)
    mean_E = others_EE @ batch.rewards_E / np.maximum(1, others_EE.sum(axis=1))
    return token_advantages(batch, batch.rewards_E - mean_E)
