"""Rewards under a limit on a cost (Safe RLHF, arXiv:2310.12773, section 3.3 and eq. 30)."""

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.trainer.algorithms.advantage import group_advantages, token_advantages
from agentrl.trainer.algorithms.advantages.gae import gae_sums
from agentrl.trainer.algorithms.constraint import costs_as_rewards
from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.trajectories import Trajectories, turn_rewards, whiten
from agentrl.types import Batch


@needs("group of 2", "cost")
def safe(batch: Batch, *, scale_by_std: bool = True) -> NDArray[np.float32]:
    """GRPO's advantages of the rewards less those of the costs, times the multiplier.

    A = (A_r - m A_c) / (1 + m), where A_r and A_c are group-relative each for itself and m is the
    multiplier that the costs have moved. With m = 1, rewards 1, 0 and costs 1, 0 give 0: what is
    gained is lost again. With costs that are all equal this is GRPO over 1 + m.
    """
    multiplier, costs = _read_multiplier_and_costs(batch)
    of_rewards_E, of_costs_E = (
        group_advantages(b.rewards_E, b.group_E, scale_by_std=scale_by_std) for b in (batch, costs)
    )
    return token_advantages(batch, (of_rewards_E - multiplier * of_costs_E) / (1 + multiplier))


@needs("critic", "turn rewards", "cost")
def safe_gae(
    batch: Batch, *, discount: float = 1.0, decay: float = 0.95, scale_by_std: bool = True
) -> NDArray[np.float32]:
    """GAE of the rewards less that of the costs, times the multiplier; whitened over the tokens.

    A = (A_r - m A_c) / (1 + m), where A_c is taken with the critic's second head, which expects
    costs; a cost is booked on the last turn. Without costs this is GAE.
    """
    multiplier, costs = _read_multiplier_and_costs(batch)
    tokens = Trajectories.of(batch)
    of_rewards_K, of_costs_K = (
        gae_sums(t, discount=discount, decay=decay) for t in (tokens, Trajectories.of(costs))
    )
    combined_K = (of_rewards_K - multiplier * of_costs_K) / (1 + multiplier)
    assert batch.values_N is not None
    assert costs.values_N is not None
    terms = batch.values_N, turn_rewards(batch)[0], costs.values_N, costs.rewards_E
    return tokens.put(whiten(combined_K, *terms, scale=scale_by_std))


def _read_multiplier_and_costs(batch: Batch) -> tuple[float, Batch]:
    """The multiplier, and the batch of the costs; raises RunError without them."""
    costs = costs_as_rewards(batch)
    if batch.multiplier is None:
        raise RunError("the batch has costs but no multiplier; let the recipe of the run add both")
    return batch.multiplier, costs
