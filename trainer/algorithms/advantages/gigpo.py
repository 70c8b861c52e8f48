"""Credit for steps out of the same state (GiGPO, arXiv:2505.10978, eqs. 6 to 9)."""

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.trainer.algorithms.advantage import group_advantages
from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.scan import discounted_sums
from agentrl.trainer.algorithms.trajectories import Trajectories, turn_rewards
from agentrl.types import Batch


@needs("group of 2", "state keys", "turn rewards")
def gigpo(
    batch: Batch, *, discount: float = 0.95, step_weight: float = 1.0, scale_by_std: bool = True
) -> NDArray[np.float32]:
    """GRPO's advantage of the episode, and that of each turn among turns out of one state.

    A_t = A_episode + step_weight * (R_t - mean(R)) / std(R), over all turns of the task's group
    that began in the same state, with R_t = r_t + discount * R_(t+1). Two members that leave one
    state for returns of 1 and 0 get 1 and -1 more there. A state that was met once, and turns
    without a key, get the episode's advantage alone. Raises RunError without state keys.
    """
    if batch.keys_U is None:
        raise RunError(
            "the batch has no state keys; let the environment give state_key with each transition"
        )
    tokens = Trajectories.of(batch)
    rewards_U, offsets_E1 = turn_rewards(batch)
    if batch.token_rewards_N is not None:
        own_K = batch.token_rewards_N[tokens.source]
        rewards_U = rewards_U + np.bincount(tokens.turns_K(), own_K, len(rewards_U))
    turns_E = np.diff(offsets_E1)
    returns_U = discounted_sums(rewards_U, turns_E, discount)
    group_U = np.repeat(batch.group_E, turns_E).tolist()
    # Turns without a key are states of their own: nobody else is in them.
    states = {
        u: (group, key) if key else (group, u)
        for u, (group, key) in enumerate(zip(group_U, batch.keys_U, strict=True))
    }
    numbers: dict[tuple[int, object], int] = {}
    state_U = np.array([numbers.setdefault(s, len(numbers)) for s in states.values()], np.int64)
    steps_U = group_advantages(returns_U, state_U, scale_by_std=scale_by_std)
    whole_E = group_advantages(batch.rewards_E, batch.group_E, scale_by_std=scale_by_std)
    whole_K = np.repeat(whole_E, tokens.lengths_E)
    return tokens.put(whole_K + step_weight * steps_U[tokens.turns_K()])
