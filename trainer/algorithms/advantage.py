"""Group-relative advantages (GRPO, arXiv:2402.03300, section 4.1.2).

Suffixes: E episodes, N tokens of all rows, R rows.
"""

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.types import Batch
from agentrl.types.batch import are_equal


def group_advantages(
    rewards_E: NDArray[np.float64], group_E: NDArray[np.integer], *, scale_by_std: bool = True
) -> NDArray[np.float64]:
    """Each episode's reward less its group's mean, over the group's standard deviation.

    The deviation is the population's (two members are at -1 and 1). Without `scale_by_std` this is
    Dr. GRPO (arXiv:2503.20783). A group of one, and a group whose rewards are all equal, gets
    exactly 0, also where they differ by rounding only. Raises RunError for a reward that is not
    finite: such an episode has no score.
    """
    rewards_E = checked_rewards(rewards_E)
    _, index_E, size_G = np.unique(group_E, return_inverse=True, return_counts=True)
    low_G, high_G = group_ranges(rewards_E, index_E)
    # Rewards relative to the group's lowest: equal ones are exactly 0, whatever their size.
    above_E = rewards_E - low_G[index_E]
    range_G = high_G - low_G
    equal_G = are_equal(low_G, high_G)
    mean_G = np.bincount(index_E, above_E, len(size_G)) / size_G
    centered_E = np.where(equal_G[index_E], 0.0, above_E - mean_G[index_E])
    if not scale_by_std:
        return centered_E
    # Relative to the group's range, so that squares of tiny or huge rewards stay in range.
    unit_E = centered_E / np.where(equal_G, 1.0, range_G)[index_E]
    std_G = np.sqrt(np.bincount(index_E, unit_E**2, len(size_G)) / size_G)
    scaled_E: NDArray[np.float64] = unit_E / np.where(std_G > 0, std_G, 1.0)[index_E]
    return scaled_E


def group_ranges(
    rewards_E: NDArray[np.float64], index_E: NDArray[np.integer]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[G] The lowest and the highest reward of each group, which are numbered from 0."""
    number = int(index_E.max(initial=-1)) + 1
    low_G, high_G = np.full(number, np.inf), np.full(number, -np.inf)
    np.minimum.at(low_G, index_E, rewards_E)
    np.maximum.at(high_G, index_E, rewards_E)
    return low_G, high_G


def token_advantages(batch: Batch, advantages_E: NDArray[np.float64]) -> NDArray[np.float32]:
    """[N] Each episode's advantage at the trained tokens of all its rows, 0 elsewhere."""
    advantages_R = advantages_E.astype(np.float32)[batch.episode_R]
    advantages_N = np.repeat(advantages_R, np.diff(batch.offsets_R1))
    return np.where(batch.mask_N, advantages_N, np.float32(0))


def group_means(
    rewards_E: NDArray[np.float64], group_E: NDArray[np.integer]
) -> NDArray[np.float64]:
    """[E] The mean reward of each episode's group."""
    _, index_E, size_G = np.unique(group_E, return_inverse=True, return_counts=True)
    means_G: NDArray[np.float64] = np.bincount(index_E, rewards_E, len(size_G)) / size_G
    return means_G[index_E]


def checked_rewards(rewards_E: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rewards; raises RunError for one that is not finite, whose episode has no score."""
    rewards_E = np.asarray(rewards_E, dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(rewards_E))
    if len(wrong):
        raise RunError(
            f"the reward of episode {wrong[0]} in the batch is {rewards_E[wrong[0]]}, expected a "
            "finite number; leave episodes without a score out of the batch"
        )
    return rewards_E
