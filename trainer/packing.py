"""From a batch to packed micro-batches: rows one after the other, without padding.

Suffixes: N tokens of the batch, R rows, P tokens of one micro-batch, K its trained tokens, S pieces
of rows, T tokens of a row.

    row 0   a b c d e     mask  . . 1 . 1     tokens that are read:  a b c d
    row 1   f g h         mask  . 1 1                                f g
    packed  a b c d f g   positions  0 1 2 3 0 1   targets  c e g h   predictors  1 3 4 5

What follows the last trained token of a row has no influence on any loss and is not computed. Rows
that begin alike are a tree of pieces each of which is computed once:

    rows      a b c d e        pieces     0  a b            of all three rows
              a b c f                     1  ├─ c           of the first two
              a b g                       2  │  ├─ d e
                                          3  │  └─ f
                                          4  └─ g
    packed    a b c d e f g    positions  0 1 2 3 4 3 2

Pieces lie in depth-first order, so a piece and all that hangs on it are one span: a token attends
to the earlier tokens of its own piece, and every token behind a piece in its span to all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl.engine.experts import CHANNEL as EXPERTS
from agentrl.errors import RunError
from agentrl.trainer.algorithms.token_arrays import weights_fault
from agentrl.types import Batch

if TYPE_CHECKING:
    from agentrl.trainer.micro_batches import Cut


STRIDE = 8
"""Rows part at multiples of this only: shorter pieces cost more than they save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """How packed tokens hang together; rows that share nothing are pieces without children."""

    offsets_S1: NDArray[np.int64]
    """Piece s is the packed tokens from `offsets_S1[s]` to `offsets_S1[s + 1]`."""
    ends_S: NDArray[np.int64]
    """Where the last piece ends that hangs on piece s; the end of piece s if none does."""
    longest: int
    """Most tokens of one row."""

    @property
    def starts_S(self) -> NDArray[np.int64]:
        """Where in its rows each piece begins: behind all the pieces on which it hangs."""
        first_S, stop_S = self.offsets_S1[:-1], self.offsets_S1[1:]
        starts_S = np.zeros_like(first_S)
        for first, stop, end in zip(first_S, stop_S, self.ends_S, strict=True):
            starts_S[(first_S >= stop) & (first_S < end)] += stop - first
        return starts_S

    @property
    def num_tokens(self) -> int:
        """All packed tokens."""
        return int(self.offsets_S1[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPiece:
    """Tokens `start..stop-1` of each of the rows `first..last-1`, which agree there."""

    first: int
    last: int
    start: int
    stop: int


def common(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    """How many leading tokens, each a line, two rows share: a multiple of `STRIDE`."""
    num = min(len(left), len(right))
    differs = (left[:num] != right[:num]).any(axis=1)
    same = int(differs.argmax()) if differs.any() else num
    return same - same % STRIDE


def pieces(lengths: Sequence[int], shared: Sequence[int]) -> list[PrefixPiece]:
    """The pieces of sorted rows in depth-first order.

    `shared[i]` is what row i has in common with row i - 1; the first one is not read.
    """
    result: list[PrefixPiece] = []
    waiting = [(0, len(lengths), 0)]
    while waiting:
        first, last, start = waiting.pop()
        stop = min(shared[first + 1 : last], default=lengths[first])
        if stop > start:
            result.append(PrefixPiece(first=first, last=last, start=start, stop=stop))
        if last - first > 1:
            cuts = [i for i in range(first + 1, last) if shared[i] == stop]
            bounds = [first, *cuts, last]
            parts = [(a, b, stop) for a, b in pairwise(bounds)]
            waiting += reversed(parts)
    return result


def tree(parts: Sequence[PrefixPiece], longest: int) -> PrefixTree:
    """Where the pieces lie, and where what hangs on each one ends."""
    offsets_S1 = np.cumsum([0, *(part.stop - part.start for part in parts)])
    ends: list[int] = []
    open_: list[int] = []
    for index, part in enumerate(parts):
        while open_ and parts[open_[-1]].stop > part.start:
            ends[open_.pop()] = int(offsets_S1[index])
        ends.append(int(offsets_S1[-1]))
        open_.append(index)
    return PrefixTree(offsets_S1=offsets_S1, ends_S=np.array(ends, dtype=np.int64), longest=longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """The rows of one micro-batch; `K` arrays are aligned with each other."""

    ids_P: NDArray[np.int64]
    positions_P: NDArray[np.int64]
    """Positions restart at 0 in each row."""
    tree: PrefixTree
    """Which packed tokens attend to which."""
    predictors_K: NDArray[np.int64]
    """Where in the packed tokens the logits of each target are; never falling."""
    targets_K: NDArray[np.int64]
    """The ids of the trained tokens."""
    source_K: NDArray[np.int64]
    """Where in the batch's flat arrays each trained token is."""
    experts_P: NDArray[np.int64] | None = None
    """[P, layers, chosen]: the experts that the engine used, if it recorded them."""
    cut: "Cut | None" = None
    """How the tokens are cut over ranks, where each has a piece of them."""


def trained_rows(batch: Batch) -> NDArray[np.int64]:
    """The rows that take part in the loss: those with a trained token that weighs something.

    Before the batch has weights, all of its trained tokens count. Raises RunError for a row whose
    first token is trained (nothing predicts it) and for weights that are none.
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
    used_N = batch.mask_N
    if batch.weights_N is not None:
        if fault := weights_fault(batch.weights_N, batch):
            raise RunError(f"the normalisation {fault}")
        used_N = used_N & (batch.weights_N > 0)
    return np.flatnonzero(np.add.reduceat(used_N.astype(np.int64), starts_R))


def plan(
    batch: Batch, rows: NDArray[np.int64], token_budget: int, *, share: bool = True
) -> list[list[int]]:
    """Split the rows into micro-batches of at most `token_budget` tokens that are computed.

    Rows that begin alike are neighbours, so that they share what they begin with. Rows stay whole:
    one that is longer than the budget gets a micro-batch of its own.
    """
    read = {r: read_tokens(batch, r) for r in rows.tolist()}
    split: list[list[int]] = []
    room = 0
    for row in _order_rows_by_beginning(read, share=share):
        cost = len(read[row])
        own = cost - (common(read[split[-1][-1]], read[row]) if share and split else 0)
        if not split or own > room:
            split.append([])
            room, own = token_budget, cost
        split[-1].append(row)
        room -= own
    return split


def num_read(batch: Batch, row: int) -> int:
    """The tokens of a row that its last trained token depends on."""
    return int(np.flatnonzero(batch.mask_N[batch.row(row)])[-1])


def read_tokens(batch: Batch, row: int) -> NDArray[np.int32]:
    """[T, columns] The tokens of a row that are computed, with all that sets them apart."""
    start = int(batch.offsets_R1[row])
    stop = start + num_read(batch, row)
    ids_T1 = batch.ids_N[start:stop, None]
    if EXPERTS not in batch.channels:
        return ids_T1
    # As everywhere, experts stand at the token that they predict.
    experts_T = batch.channels[EXPERTS][start + 1 : stop + 1].astype(np.int32)
    return np.concatenate([ids_T1, experts_T.reshape(stop - start, -1)], axis=1)


def neighbours(batch: Batch, rows: Sequence[int]) -> tuple[list[int], list[int]]:
    """Rows that begin alike next to each other, and what each shares with the one before."""
    read = {row: read_tokens(batch, row) for row in rows}
    order = _order_rows_by_beginning(read, share=True)
    return order, [0, *(common(read[a], read[b]) for a, b in pairwise(order))][: len(order)]


def shift(targets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the logits of the tokens at `targets` are: one position before. The only such place."""
    return targets - 1


def pack(batch: Batch, rows: Sequence[int], *, share: bool = True) -> PackedRows:
    """Lay the rows one after the other; each has a trained token."""
    order, shared = neighbours(batch, rows) if share else (list(rows), [0] * len(rows))
    lengths = [num_read(batch, row) for row in order]
    parts = pieces(lengths, shared)
    starts = batch.offsets_R1[order]
    source_P = np.concatenate(
        [np.arange(part.start, part.stop) + starts[part.first] for part in parts]
    )
    experts = batch.channels.get(EXPERTS)
    targets = [np.flatnonzero(batch.mask_N[batch.row(row)]) for row in order]
    source_K = np.concatenate([t + s for t, s in zip(targets, starts, strict=True)])
    layout = tree(parts, max(lengths))
    places = find_places(parts, layout, lengths)
    predictors_K = np.concatenate([p[shift(t)] for p, t in zip(places, targets, strict=True)])
    by_place = np.argsort(predictors_K, kind="stable")
    return PackedRows(
        ids_P=batch.ids_N[source_P].astype(np.int64),
        positions_P=np.concatenate([np.arange(part.start, part.stop) for part in parts]),
        tree=layout,
        predictors_K=predictors_K[by_place],
        targets_K=batch.ids_N[source_K[by_place]].astype(np.int64),
        source_K=source_K[by_place],
        experts_P=None if experts is None else experts[source_P + 1].astype(np.int64),
    )


def find_places(
    parts: Sequence[PrefixPiece], layout: PrefixTree, lengths: Sequence[int]
) -> list[NDArray[np.int64]]:
    """Where among the packed tokens each token of each row is."""
    places = [np.empty(length, dtype=np.int64) for length in lengths]
    for index, part in enumerate(parts):
        span = np.arange(part.stop - part.start) + int(layout.offsets_S1[index])
        for row in range(part.first, part.last):
            places[row][part.start : part.stop] = span
    return places


def _order_rows_by_beginning(read: Mapping[int, NDArray[np.int32]], *, share: bool) -> list[int]:
    """Rows that begin alike next to each other; without sharing, by falling length."""
    if share:
        return sorted(read, key=lambda row: (read[row].tobytes(), row))
    return sorted(read, key=lambda row: (-len(read[row]), row))


def empty() -> PackedRows:
    """One token without a target: what a rank computes to meet the others when it has no rows."""
    one, nothing = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return PackedRows(
        ids_P=one,
        positions_P=one,
        tree=tree([PrefixPiece(first=0, last=1, start=0, stop=1)], 1),
        predictors_K=nothing,
        targets_K=nothing,
        source_K=nothing,
    )
