"""Mini-batches: several updates from one batch, each on whole groups of it.

Suffixes: N tokens of the batch, E episodes.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from agentrl.types import Batch


def deal_groups(batch: Batch, number: int, seed: int) -> NDArray[np.int32]:
    """[E] A mini-batch for each episode: groups in an order of chance, shared as evenly as can be.

    There are fewer than `number` where there are fewer groups.
    """
    groups, index_E = np.unique(batch.group_E, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(groups))
    minibatch_G = np.zeros(len(groups), dtype=np.int32)
    for minibatch, dealt in enumerate(np.array_split(order, max(1, min(number, len(groups))))):
        minibatch_G[dealt] = minibatch
    return minibatch_G[index_E]


def split_minibatches(batch: Batch) -> Iterator[tuple[Batch, NDArray[np.bool_]]]:
    """Each mini-batch as a batch of its own, and which of the tokens are in it."""
    if batch.minibatch_E is None:
        yield batch, np.ones(batch.num_tokens, dtype=np.bool_)
        return
    for minibatch in np.unique(batch.minibatch_E):
        chosen_E = batch.minibatch_E == minibatch
        chosen_N = np.repeat(chosen_E[batch.episode_R], np.diff(batch.offsets_R1))
        yield batch.take_episodes(chosen_E), chosen_N
