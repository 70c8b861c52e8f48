"""Which rank computes which rows: equal cost, equal numbers of micro-batches, no chance involved.

Every rank makes the whole plan from the whole batch, so nothing has to be sent.
"""

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.packing import PackedRows, empty, num_read, pack, plan
from agentrl.trainer.ranks import Ranks
from agentrl.trainer.sequence import cut_rows
from agentrl.types import Batch


def micro_batches(
    batch: Batch, rows: NDArray[np.int64], *, token_budget: int, width: int, ranks: Ranks
) -> Iterator[PackedRows]:
    """What this rank computes of the rows: as many micro-batches as every other rank.

    Ranks that share rows have the same ones, with room for the tokens of all of them.
    """
    layout = ranks.layout
    budget = token_budget * layout.sequence
    plans = split_over_ranks(batch, rows, num_ranks=layout.data, token_budget=budget, width=width)
    for micro in plans[ranks.data_rank]:
        yield cut_rows(pack(batch, micro) if micro else empty(), ranks)


def split_over_ranks(
    batch: Batch, rows: NDArray[np.int64], *, num_ranks: int, token_budget: int, width: int
) -> list[list[list[int]]]:
    """For each rank its micro-batches, each a list of rows.

    All ranks have equally many, since they meet in each one; a rank with fewer rows has empty ones
    at the end. `width` is the model's hidden width.
    """
    lengths = [num_read(batch, row) for row in rows.tolist()]
    shares = deal([cost(length, width) for length in lengths], num_ranks)
    plans = [plan(batch, rows[share], token_budget) for share in shares]
    most = max(map(len, plans))
    return [mine + [[]] * (most - len(mine)) for mine in plans]


def cost(length: int, width: int) -> float:
    """Time of a row of `length` tokens, relative: products with weights, and causal attention.

    A layer has about 12 width^2 weights, so a token takes 24 width^2 operations there and
    2 length width in attention (half of the scores are masked).
    """
    return length * (1 + length / (12 * width))


def deal(costs: Sequence[float], num_ranks: int) -> list[list[int]]:
    """Indices for each rank: the costliest first, each to the rank that has least so far.

    The costliest rank has at most 4/3 of the least possible (Graham 1969, theorem 2).
    """
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [(0.0, rank) for rank in range(num_ranks)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, rank = heapq.heappop(loads)
        shares[rank].append(index)
        heapq.heappush(loads, (load + costs[index], rank))
    return shares
