"""Advantages of the success of k tries together (pass@k training, arXiv:2508.10751, 2.4)."""

import math

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.advantage import checked_rewards, token_advantages
from agentrl.trainer.algorithms.needs import needs
from agentrl.types import Batch


@needs("group of 2")
def pass_at_k(batch: Batch, *, k: int = 2, success_at: float = 1.0) -> NDArray[np.float32]:
    """The mean advantage of all teams of k members that each member is in.

    With f failures among G, a team succeeds with p = 1 - C(f, k) / C(G, k) and a deviation of
    s = sqrt(p (1 - p)). A success has (1 - p) / s; a failure has
    (1 - p - C(f - 1, k - 1) / C(G - 1, k - 1)) / s, for those are the teams in which all failed.
    One success of four and k = 2: 1 and -1/3. Groups of up to k, and those in which every team
    succeeds or fails, give 0. A reward of `success_at` is a success.
    """
    won_E = checked_rewards(batch.rewards_E) >= success_at
    advantages_E = np.zeros(len(won_E))
    _, index_E, size_G = np.unique(batch.group_E, return_inverse=True, return_counts=True)
    for group, size in enumerate(size_G.tolist()):
        members = np.flatnonzero(index_E == group)
        failures = size - int(won_E[members].sum())
        if size < k or failures < k or failures == size:
            continue
        all_fail = math.comb(failures, k) / math.comb(size, k)
        with_this = math.comb(failures - 1, k - 1) / math.comb(size - 1, k - 1)
        scale = math.sqrt(all_fail * (1 - all_fail))
        advantages_E[members] = np.where(won_E[members], all_fail, all_fail - with_this) / scale
    return token_advantages(batch, advantages_E)
