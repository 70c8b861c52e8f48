"""Tokens for losses, from plain numbers."""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from agentrl.rollout import make_batch
from agentrl.trainer.algorithms.trained_tokens import TrainedTokens, trained_tokens


def tokens_of_rows(
    behavior: Sequence[Sequence[float]],
    advantages: Sequence[Sequence[float]],
    weights: Sequence[Sequence[float]] | None = None,
    reference: Sequence[Sequence[float]] | None = None,
    rewards: Sequence[float] | None = None,
) -> TrainedTokens:
    """The trained tokens of rows that have a prompt of one token each, in float64."""
    lengths = [len(row) + 1 for row in behavior]

    def flat(rows: Sequence[Sequence[float]]) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
        return np.array([x for row in rows for x in (0.0, *row)], np.float32)

    mask_N = np.array([t > 0 for n in lengths for t in range(n)], np.bool_)
    ones = [[1.0] * (n - 1) for n in lengths]
    batch = replace(
        make_batch([], temperature=1.0),
        ids_N=np.arange(len(mask_N), dtype=np.int32),
        mask_N=mask_N,
        marks_N=np.arange(len(mask_N), dtype=np.uint32),
        logprobs_N=flat(behavior),
        advantages_N=flat(advantages),
        weights_N=flat(weights or ones),
        reference_N=None if reference is None else flat(reference),
        offsets_R1=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        episode_R=np.arange(len(lengths), dtype=np.int32),
        rewards_E=np.array(rewards or [0.0] * len(lengths)),
    )
    source_K = np.flatnonzero(mask_N)
    return trained_tokens(batch, source_K, torch.zeros(0, dtype=torch.float64))


def one_row(
    behavior: Sequence[float], advantages: Sequence[float], weights: Sequence[float] | None = None
) -> TrainedTokens:
    """The tokens of one row."""
    return tokens_of_rows([behavior], [advantages], None if weights is None else [weights])
