"""Rows that begin alike, as a tree of pieces each of which is computed once.

    rows      a b c d e        pieces     0  a b            of all three rows
              a b c f                     1  ├─ c           of the first two
              a b g                       2  │  ├─ d e
                                          3  │  └─ f
                                          4  └─ g
    packed    a b c d e f g    positions  0 1 2 3 4 3 2

Pieces lie in depth-first order, so a piece and all that hangs on it are one span: a token attends
to the earlier tokens of its own piece, and every token behind a piece in its span to all of it.

Suffixes: S pieces, P packed tokens, T tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

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
