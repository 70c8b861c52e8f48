"""On-policy distillation: the policy's own episodes, judged token by token by a teacher."""

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.needs import needs
from agentrl.types import Batch


@needs("teacher")
def distill(batch: Batch) -> NDArray[np.float32]:
    """How much likelier the teacher finds each token than the policy that sampled it.

    A_t = log teacher_t - log policy_t, whatever the reward. Over what the policy samples its mean
    is -KL(policy || teacher), and its policy gradient that of each token's divergence, without the
    later ones' (GKD on the student's own samples, reverse KL: arXiv:2306.13649, section 3). A token
    of probability 0.5, and 0.25 under the teacher, has -0.693; where both agree all are 0.
    """
    assert batch.reference_N is not None
    advantages_N: NDArray[np.float32] = np.where(
        batch.mask_N, batch.reference_N - batch.logprobs_N, np.float32(0)
    )
    return advantages_N
