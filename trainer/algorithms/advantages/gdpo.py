"""Each part of a score on a scale of its own (GDPO, arXiv:2601.05242, eqs. 4 to 6)."""

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.trainer.algorithms.advantage import group_advantages
from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.trajectories import Trajectories, whiten
from agentrl.types import Batch


@needs("group of 2", "score parts")
def gdpo(batch: Batch) -> NDArray[np.float32]:
    """GRPO's advantages of each score part, summed, and whitened over the step's tokens.

    A = whiten(sum_k (r_k - mean(r_k)) / std(r_k)): members that differ in one part are told apart
    although the sums of their parts are equal. Parts (1, 0), (0, 1) of equal sum give 0 with GRPO
    and here too, but (1, 1), (1, 0), (0, 0) give steps of the same size for parts of any scale. A
    part in which a group is equal adds 0 before the whitening. Raises RunError without parts.
    """
    if not batch.parts_E:
        raise RunError("the batch has no score parts; let the verifier give parts with its score")
    scaled = [group_advantages(part_E, batch.group_E) for part_E in batch.parts_E.values()]
    tokens = Trajectories.of(batch)
    return tokens.put(whiten(np.repeat(np.sum(scaled, axis=0), tokens.lengths_E), *scaled))
