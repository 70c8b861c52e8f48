"""Sequence parallelism: each rank holds a piece of the packed tokens (arXiv:2309.14509).

    rank 0  tokens 0..3, all heads  ─┐ all to all ┌─  tokens 0..7, heads 0 1  ─ attention ─┐ back
    rank 1  tokens 4..7, all heads  ─┘            └─  tokens 0..7, heads 2 3  ─ attention ─┘

Everything but attention works on single tokens, so a rank computes it for its own piece alone;
around attention tokens and heads change places. Losses are sums over tokens: each rank adds those
of the targets that its piece predicts.

Suffixes: P packed tokens, K trained tokens.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part only.

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from agentrl.trainer.packing import PackedRows
from agentrl.trainer.parallel_dims import Ranks
from agentrl.trainer.prefix_tree import PrefixTree


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
