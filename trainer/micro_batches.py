"""Which rank computes what: equal cost, equal numbers of micro-batches, no chance involved.

Whoever has the whole batch makes the plan and deals its rows (`agentrl.trainer.shares`). With
sequence parallelism (Ulysses, arXiv:2309.14509) each rank then holds a piece of the packed tokens:

    rank 0  tokens 0..3, all heads  ─┐ all to all ┌─  tokens 0..7, heads 0 1  ─ attention ─┐ back
    rank 1  tokens 4..7, all heads  ─┘            └─  tokens 0..7, heads 2 3  ─ attention ─┘

Everything but attention works on single tokens, so a rank computes it for its own piece alone;
around attention tokens and heads change places. Losses are sums over tokens: each rank adds those
of the targets that its piece predicts.

Suffixes: P packed tokens, K trained tokens, R ranks.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part only.

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from agentrl.trainer.packing import PackedRows, PrefixTree, empty, neighbours, num_read, pack, plan
from agentrl.trainer.parallel_dims import Ranks
from agentrl.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How packed tokens are cut over the ranks of a group."""

    group: ProcessGroup
    sizes: tuple[int, ...]
    """Tokens of each rank."""
    mine: int

    def to_heads(self, states: Tensor) -> Tensor:
        """[my tokens, heads, width] to [all tokens, my heads, width]."""
        (num, heads, width), ranks = states.shape, len(self.sizes)
        # Heads first, so that what one rank gets lies together.
        split = states.reshape(num, ranks, heads // ranks, width).transpose(0, 1)
        return self._exchange_states(split.flatten(0, 1), [num] * ranks, list(self.sizes))

    def to_tokens(self, states: Tensor) -> Tensor:
        """The way back."""
        num, ranks = self.sizes[self.mine], len(self.sizes)
        got = self._exchange_states(states, list(self.sizes), [num] * ranks)
        return got.view(ranks, num, *got.shape[1:]).transpose(0, 1).flatten(1, 2)

    def sum_pieces(self, sums: Tensor) -> Tensor:
        """The sum over the ranks, each of whose losses the gradient is of."""
        return cast(Tensor, _Sum.apply(sums, self.group))  # type: ignore[no-untyped-call]

    def _exchange_states(self, states: Tensor, send: list[int], receive: list[int]) -> Tensor:
        result = _Exchange.apply(states, send, receive, self.group)  # type: ignore[no-untyped-call]
        return cast(Tensor, result)


def cut_rows(rows: PackedRows, ranks: Ranks) -> PackedRows:
    """This rank's piece of packed rows, with the targets that it predicts."""
    if ranks.sequence is None:
        return rows
    parts = ranks.layout.sequence
    rows = _pad_packed_tokens_to_least(rows, parts)
    total = len(rows.ids_P)
    ends = [total * (i + 1) // parts for i in range(parts)]
    sizes = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
    mine = ranks.sequence_rank
    start, stop = ends[mine] - sizes[mine], ends[mine]
    inside_K = (rows.predictors_K >= start) & (rows.predictors_K < stop)
    return replace(
        rows,
        ids_P=rows.ids_P[start:stop],
        positions_P=rows.positions_P[start:stop],
        predictors_K=rows.predictors_K[inside_K] - start,
        targets_K=rows.targets_K[inside_K],
        source_K=rows.source_K[inside_K],
        experts_P=None if rows.experts_P is None else rows.experts_P[start:stop],
        cut=Cut(group=ranks.sequence, sizes=sizes, mine=mine),
    )


def _pad_packed_tokens_to_least(rows: PackedRows, least: int) -> PackedRows:
    """With tokens that predict nothing, so that no rank's piece is empty: models refuse that."""
    missing = least - len(rows.ids_P)
    if missing <= 0:
        return rows
    experts = rows.experts_P
    if experts is not None:
        # A token never goes to one expert twice.
        any_one: NDArray[np.int64] = np.indices((missing, *experts.shape[1:]))[2]
        experts = np.concatenate([experts, any_one])
    return replace(
        rows,
        ids_P=np.pad(rows.ids_P, (0, missing)),
        positions_P=np.pad(rows.positions_P, (0, missing)),
        tree=PrefixTree(
            offsets_S1=np.append(rows.tree.offsets_S1, least),
            ends_S=np.append(rows.tree.ends_S, least),
            longest=max(rows.tree.longest, missing),
        ),
        experts_P=experts,
    )


class _Exchange(torch.autograd.Function):
    """All to all along the first dimension; the gradient goes the way back."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, send: list[int], receive: list[int], group: ProcessGroup
    ) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _all_to_all(states, send, receive, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(grads[0], ctx.receive, ctx.send, ctx.group), None, None, None


class _Sum(torch.autograd.Function):
    """All reduce; what one rank adds is in the losses of all, so their gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_reduce(sums, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(grads[0], ctx.group), None


def _all_reduce(sums: Tensor, group: ProcessGroup) -> Tensor:
    result = sums.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(result, group=group)
    return result


def _all_to_all(states: Tensor, send: list[int], receive: list[int], group: ProcessGroup) -> Tensor:
    result = states.new_empty(sum(receive), *states.shape[1:])
    distributed.all_to_all_single(result, states.contiguous(), receive, send, group=group)
    return result


def pack_micros(
    batch: Batch, micros: Sequence[Sequence[int]], ranks: Ranks
) -> Iterator[PackedRows]:
    """What this rank computes of each micro-batch, of which every rank has as many."""
    for micro in micros:
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
