"""Which rank computes which rows: equal cost, equal numbers of micro-batches, no chance involved.

Every rank makes the whole plan from the whole batch, so nothing has to be sent.
"""

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.packing import PackedRows, empty, neighbours, num_read, pack, plan
from agentrl.trainer.parallel_dims import Ranks
from agentrl.trainer.ulysses import cut_rows
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

    Rows that begin alike stay together, unless the costliest rank has less to do when each row is
    dealt by itself. All ranks have equally many micro-batches, since they meet in each one; a rank
    with fewer rows has empty ones at the end. `width` is the model's hidden width.
    """
    if num_ranks == 1:
        return [plan(batch, rows, token_budget)]
    found = rows.tolist()
    dealt = deal([cost(num_read(batch, row), width) for row in found], num_ranks)
    choices = (
        _deal_order(*_cost_rows(batch, found, width), num_ranks),
        [[found[i] for i in share] for share in dealt],
    )
    shares = min(
        choices, key=lambda shares: max(sum(_cost_rows(batch, share, width)[1]) for share in shares)
    )
    plans = [plan(batch, np.array(share, np.int64), token_budget) for share in shares]
    most = max(map(len, plans))
    return [mine + [[]] * (most - len(mine)) for mine in plans]


def cost(length: int, width: int) -> float:
    """Time of a row of `length` tokens, relative: products with weights, and causal attention.

    A layer has about 12 width^2 weights, so a token takes 24 width^2 operations there and
    2 length width in attention (half of the scores are masked).
    """
    return length * (1 + length / (12 * width))


def _cost_rows(batch: Batch, rows: Sequence[int], width: int) -> tuple[list[int], list[float]]:
    """The rows with those that begin alike together, and what each costs after the one before."""
    order, shared = neighbours(batch, rows)
    lengths = [num_read(batch, row) for row in order]
    pairs = zip(lengths, shared, strict=True)
    return order, [cost(length, width) - cost(same, width) for length, same in pairs]


def _deal_order(order: Sequence[int], costs: Sequence[float], num_ranks: int) -> list[list[int]]:
    """Neighbours for each rank: a row goes where its middle lies in the sum of all costs."""
    middles = np.cumsum(costs) - np.array(costs) / 2
    # A row that is all shared costs nothing, and may lie at the very end.
    places_R = np.minimum(middles / max(sum(costs), 1) * num_ranks, num_ranks - 1)
    places: list[int] = places_R.astype(np.int64).tolist()
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    for row, rank in zip(order, places, strict=True):
        shares[rank].append(row)
    return shares


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
