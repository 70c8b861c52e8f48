"""Causal attention over a tree of packed pieces, without a dense mask.

A mask over the packed tokens costs the square of all of them. Here each piece attends to itself in
a causal call, and all that hangs on a piece attends to the whole of it in one rectangular call that
needs no mask. The parts are merged by their log-sum-exp; backward gives each call the merged output
and log-sum-exp, with which its gradients are exact (as in ring attention, arXiv:2310.01889).

Pieces of nearly equal length share one causal call, padded on the right: a causal row never sees
the padding behind it. On other devices than a CPU one flex_attention call does it all, or
FlashAttention where it is installed and no row shares anything.

Suffixes: P packed tokens, S pieces, H query heads, G key/value heads, D width of a head.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# torch and transformers are typed in part only.

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.trainer.prefix import Tree
from agentrl.trainer.sequence import Cut

NAME = "agentrl_packed"
_MOST_PADDING = 0.1
# What torch's own attention calls on a CPU; the public function hides the log-sum-exp.
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Pieces that share one causal call."""

    num_rows: int
    longest: int
    tokens: Tensor | slice
    """Their packed tokens: a slice if they are neighbours and equally long."""
    places: Tensor | None = None
    """Where each of them is among the padded ones; None without padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stem:
    """A piece on which others hang: tokens `stop..end-1` attend to all of `start..stop-1`."""

    start: int
    stop: int
    end: int


class Layout:
    """What the attention of one micro-batch needs, the same in each layer."""

    def __init__(self, tree: Tree, device: torch.device, cut: Cut | None = None) -> None:
        """For packed tokens on `device`, of which this rank may have a piece only."""
        self.cut = cut
        self._tree = tree
        self._device = device
        self.longest = tree.longest

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """All pieces, by length."""
        return tuple(
            _bucket(self._tree.offsets_S1, chosen, self._device)
            for chosen in buckets(np.diff(self._tree.offsets_S1))
        )

    @cached_property
    def stems(self) -> tuple[Stem, ...]:
        """The pieces on which others hang."""
        starts, stops = self._tree.offsets_S1[:-1].tolist(), self._tree.offsets_S1[1:].tolist()
        ends = self._tree.ends_S.tolist()
        return tuple(
            Stem(start=start, stop=stop, end=end)
            for start, stop, end in zip(starts, stops, ends, strict=True)
            if end > stop
        )

    @cached_property
    def block_mask(self) -> BlockMask:
        """The same for flex_attention, which skips blocks that see nothing."""
        sizes = np.diff(self._tree.offsets_S1)
        end_P = torch.from_numpy(np.repeat(self._tree.ends_S, sizes)).to(self._device)

        def sees(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < end_P[key])

        num = self._tree.num_tokens
        # Compiled, so that the mask is never there in full.
        make = create_block_mask if self._device.type == "cpu" else torch.compile(create_block_mask)
        return make(sees, None, None, num, num, device=str(self._device))

    @cached_property
    def cumulative(self) -> Tensor:
        """Row starts as FlashAttention takes them; for rows that share nothing."""
        return torch.from_numpy(self._tree.offsets_S1.astype(np.int32)).to(self._device)


def buckets(lengths_S: NDArray[np.int64]) -> list[list[int]]:
    """Pieces by falling length, cut where padding would pass a tenth of a piece."""
    result: list[list[int]] = []
    longest = 0
    for piece in np.argsort(-lengths_S, kind="stable").tolist():
        if not result or lengths_S[piece] < longest * (1 - _MOST_PADDING):
            result.append([])
            longest = int(lengths_S[piece])
        result[-1].append(piece)
    return result


def _bucket(offsets_S1: NDArray[np.int64], chosen: list[int], device: torch.device) -> Bucket:
    lengths = (offsets_S1[1:] - offsets_S1[:-1])[chosen]
    longest = int(lengths[0])
    padded = int(lengths[-1]) < longest
    if not padded and chosen == list(range(chosen[0], chosen[-1] + 1)):
        tokens: Tensor | slice = slice(int(offsets_S1[chosen[0]]), int(offsets_S1[chosen[-1] + 1]))
        return Bucket(num_rows=len(chosen), longest=longest, tokens=tokens)
    spans = [np.arange(offsets_S1[piece], offsets_S1[piece + 1]) for piece in chosen]
    places = [np.arange(n) + row * longest for row, n in enumerate(lengths.tolist())]
    return Bucket(
        num_rows=len(chosen),
        longest=longest,
        tokens=torch.from_numpy(np.concatenate(spans)).to(device),
        places=torch.from_numpy(np.concatenate(places)).to(device) if padded else None,
    )


@contextmanager
def packed_attention(model: PreTrainedModel, name: str = NAME) -> Generator[None, None, None]:
    """Let the model attend by pieces inside, and as before afterwards: an engine may share it."""
    # transformers offers a public way to set the implementation, none to ask for it.
    before = str(model.config._attn_implementation)  # pyright: ignore[reportPrivateUsage]
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def attend(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float) -> Tensor:
    """[P, H, D] from `query` [P, H, D] and `key` and `value` [P, G, D]."""
    if query.device.type == "cpu":
        output: Tensor = _TreeAttention.apply(  # type: ignore[no-untyped-call]  # torch's
            query, key, value, layout, scale
        )
        return output
    if not layout.stems and _has_flash_attention() and query.dtype.itemsize == 2:
        return _flash(query, key, value, layout, scale)
    return flex(query, key, value, layout, scale)


def flex(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float) -> Tensor:
    """The same by flex_attention, which has no backward on a CPU."""
    function: Any = flex_attention if query.device.type == "cpu" else _compiled_flex()
    states = [states.transpose(0, 1).unsqueeze(0) for states in (query, key, value)]
    output: Tensor = function(*states, block_mask=layout.block_mask, scale=scale, enable_gqa=True)
    return output.squeeze(0).transpose(0, 1)


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=True)


@cache
def _has_flash_attention() -> bool:
    return find_spec("flash_attn") is not None


def _flash(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float) -> Tensor:
    at, most = layout.cumulative, layout.longest
    function = import_module("flash_attn").flash_attn_varlen_func
    output: Tensor = function(
        query, key, value, at, at, most, most, softmax_scale=scale, causal=True
    )
    return output


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: [1, heads, P, width] to [1, P, heads, width]."""
    longest = layout.longest
    if softcap is not None or s_aux is not None or (sliding_window or longest) < longest:
        raise ConfigError(
            f"{type(module).__name__} uses soft-capped, sink or sliding-window attention, which "
            "the trainer does not compute; choose a model with plain causal attention"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # Under autocast rotary embeddings leave queries and keys in float32.
    states = [s.squeeze(0).transpose(0, 1).to(value.dtype) for s in (query, key, value)]
    if layout.cut is not None:
        states = [layout.cut.to_heads(s) for s in states]
    output = attend(states[0], states[1], states[2], layout, scale)
    if layout.cut is not None:
        output = layout.cut.to_tokens(output)
    return output.unsqueeze(0), None


class _TreeAttention(torch.autograd.Function):
    """`attend` on a CPU."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float
    ) -> Tensor:
        num, heads, _ = query.shape
        # Parts are merged in at least float32, whatever the model computes in.
        dtype = torch.promote_types(query.dtype, torch.float32)
        output = torch.empty_like(query, dtype=dtype)
        log_sum = query.new_empty(num, heads, dtype=dtype)
        for bucket in layout.buckets:
            rows = [_rows(s, bucket) for s in (query, *_repeated(key, value, heads))]
            part, part_sum = _forward(*rows, is_causal=True, scale=scale)
            _put(output, part, bucket)
            _put(log_sum, part_sum, bucket)
        for stem in layout.stems:
            behind = slice(stem.stop, stem.end)
            part, part_sum = _forward(*_stem_states(query, key, value, stem), scale=scale)
            part, part_sum = (_by_token(p, heads) for p in (part, part_sum))
            total = torch.logaddexp(log_sum[behind], part_sum)
            output[behind] *= torch.exp(log_sum[behind] - total).unsqueeze(-1)
            output[behind] += part * torch.exp(part_sum - total).unsqueeze(-1)
            log_sum[behind] = total
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, log_sum)
        ctx.layout, ctx.scale = layout, scale
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, log_sum = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        heads, groups = query.shape[1], key.shape[1]
        query_grad, key_grad, value_grad = (torch.empty_like(s) for s in (query, key, value))
        for bucket in layout.buckets:
            states = (grads[0], query, *_repeated(key, value, heads), output, log_sum)
            rows = [_rows(s, bucket) for s in states]
            parts = _backward(*rows, 0.0, True, scale=scale)
            _put(query_grad, parts[0], bucket)
            for grad, part in ((key_grad, parts[1]), (value_grad, parts[2])):
                _put(grad, _summed(part, groups), bucket)
        for stem in layout.stems:
            behind = slice(stem.stop, stem.end)
            theirs = _stem_states(query, key, value, stem)
            mine = [_grouped(s[behind], groups) for s in (grads[0], output, log_sum)]
            parts = _backward(mine[0], *theirs, mine[1], mine[2], 0.0, False, scale=scale)
            query_grad[behind] += _by_token(parts[0], heads)
            for grad, part in ((key_grad, parts[1]), (value_grad, parts[2])):
                grad[stem.start : stem.stop] += part.squeeze(0).transpose(0, 1)
        return query_grad, key_grad, value_grad, None, None


def _repeated(key: Tensor, value: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """[P, H, D]: a head of keys and values for each head of queries."""
    group = heads // key.shape[1]
    if group == 1:
        return key, value
    return key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)


def _summed(grad: Tensor, groups: int) -> Tensor:
    """[rows, G, longest, D]: the way back, for gradients [rows, H, longest, D]."""
    rows, heads, *rest = grad.shape
    return grad.view(rows, groups, heads // groups, *rest).sum(2)


def _rows(states: Tensor, bucket: Bucket) -> Tensor:
    """[rows, heads, longest, ...] of [P, heads, ...], with zeros behind the shorter rows."""
    states = states[bucket.tokens]
    if bucket.places is not None:
        padded = states.new_zeros(bucket.num_rows * bucket.longest, *states.shape[1:])
        states = padded.index_copy_(0, bucket.places, states)
    return states.view(bucket.num_rows, bucket.longest, *states.shape[1:]).transpose(1, 2)


def _put(target: Tensor, rows: Tensor, bucket: Bucket) -> None:
    """The way back."""
    flat = rows.transpose(1, 2).flatten(0, 1)
    target[bucket.tokens] = (flat if bucket.places is None else flat[bucket.places]).to(
        target.dtype
    )


def _stem_states(query: Tensor, key: Tensor, value: Tensor, stem: Stem) -> list[Tensor]:
    """Queries behind the stem, keys and values of the stem: [1, G, tokens, D]."""
    groups = key.shape[1]
    mine = [_grouped(s[stem.start : stem.stop], groups) for s in (key, value)]
    return [_grouped(query[stem.stop : stem.end], groups), *mine]


def _grouped(states: Tensor, groups: int) -> Tensor:
    """[1, G, tokens x heads of a group, ...] of [tokens, heads, ...].

    Without a mask the query heads that share a key head can be its query positions.
    """
    num, heads, *width = states.shape
    grouped = states.reshape(num, groups, heads // groups, *width).transpose(0, 1)
    return grouped.flatten(1, 2).unsqueeze(0)


def _by_token(states: Tensor, heads: int) -> Tensor:
    """The way back."""
    _, groups, _, *width = states.shape
    return states.view(groups, -1, heads // groups, *width).transpose(0, 1).flatten(1, 2)


AttentionInterface.register(NAME, _attend)
