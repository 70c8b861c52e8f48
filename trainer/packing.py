"""From a batch to packed micro-batches: rows one after the other, without padding.

Suffixes: N tokens of the batch, R rows, P tokens of one micro-batch, K its trained tokens.

    row 0   a b c d e     mask  . . 1 . 1     tokens that are read:  a b c d
    row 1   f g h         mask  . 1 1                                f g
    packed  a b c d f g   positions  0 1 2 3 0 1   targets  c e g h   predictors  1 3 4 5

What follows the last trained token of a row has no influence on any loss and is not computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RunError
from agentrl.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """The rows of one micro-batch; `K` arrays are aligned with each other."""

    ids_P: NDArray[np.int64]
    positions_P: NDArray[np.int64]
    """Positions restart at 0 in each row."""
    lengths: tuple[int, ...]
    """Tokens of each row; their sum is P."""
    predictors_K: NDArray[np.int64]
    """Where in the packed tokens the logits of each target are."""
    targets_K: NDArray[np.int64]
    """The ids of the trained tokens."""
    source_K: NDArray[np.int64]
    """Where in the batch's flat arrays each trained token is."""
    weights_K: NDArray[np.float32]


def trained_rows(batch: Batch) -> NDArray[np.int64]:
    """The rows that take part in the loss: a trained token and a positive weight.

    Raises RunError for a row whose first token is trained (nothing predicts it) and for weights
    that are negative or not finite.
    """
    if not batch.num_rows:
        return np.zeros(0, dtype=np.int64)
    starts_R = batch.offsets_R1[:-1]
    if batch.mask_N[starts_R].any():
        row = int(np.flatnonzero(batch.mask_N[starts_R])[0])
        name = batch.episode_ids[int(batch.episode_R[row])]
        raise RunError(
            f"the first token of row {row} (episode {name}) is marked as trained, but nothing "
            "predicts it; a row begins with a prompt"
        )
    if not (np.isfinite(batch.weights_R) & (batch.weights_R >= 0)).all():
        raise RunError(
            f"row weights are {batch.weights_R}, expected finite numbers of at least 0; check "
            "where the batch was built"
        )
    num_R = np.add.reduceat(batch.mask_N.astype(np.int64), starts_R)
    return np.flatnonzero((num_R > 0) & (batch.weights_R > 0))


def trained_weight(batch: Batch, rows: NDArray[np.int64]) -> float:
    """The global count: the sum of weights over all trained tokens of the rows."""
    counts = [int(batch.mask_N[batch.row(r)].sum()) for r in rows.tolist()]
    return float(np.dot(batch.weights_R[rows].astype(np.float64), counts))


def plan(batch: Batch, rows: NDArray[np.int64], token_budget: int) -> list[list[int]]:
    """Split the rows into micro-batches of at most `token_budget` tokens that are read.

    Rows stay whole; one that is longer than the budget gets its own micro-batch. Rows are taken by
    falling length, so that neighbours are about equally long; the split depends on nothing else.
    """
    lengths = {r: num_read(batch, r) for r in rows.tolist()}
    split: list[list[int]] = []
    room = 0
    for row in sorted(lengths, key=lambda r: (-lengths[r], r)):
        if not split or lengths[row] > room:
            split.append([])
            room = token_budget
        split[-1].append(row)
        room -= lengths[row]
    return split


def num_read(batch: Batch, row: int) -> int:
    """The tokens of a row that its last trained token depends on."""
    return int(np.flatnonzero(batch.mask_N[batch.row(row)])[-1])


def shift(targets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the logits of the tokens at `targets` are: one position before. The only such place."""
    return targets - 1


def pack(batch: Batch, rows: Sequence[int]) -> PackedRows:
    """Lay the rows one after the other; each has a trained token."""
    lengths = tuple(num_read(batch, row) for row in rows)
    starts = batch.offsets_R1[list(rows)]
    ids = [batch.ids_N[s : s + n] for s, n in zip(starts, lengths, strict=True)]
    targets = [np.flatnonzero(batch.mask_N[batch.row(row)]) for row in rows]
    packed_starts = np.cumsum((0, *lengths[:-1]))
    source_K = np.concatenate([t + s for t, s in zip(targets, starts, strict=True)])
    counts = [len(t) for t in targets]
    return PackedRows(
        ids_P=np.concatenate(ids).astype(np.int64),
        positions_P=np.concatenate([np.arange(n) for n in lengths]),
        lengths=lengths,
        predictors_K=shift(
            np.concatenate([t + s for t, s in zip(targets, packed_starts, strict=True)])
        ),
        targets_K=batch.ids_N[source_K].astype(np.int64),
        source_K=source_K,
        weights_K=np.repeat(batch.weights_R[list(rows)], counts),
    )
