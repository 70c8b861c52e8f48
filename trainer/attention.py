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

from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)
from transformers import AttentionInterface

from agentrl.engine.local.demands import refuse_arguments
from agentrl.trainer.micro_batches import Cut
from agentrl.trainer.packing import PrefixTree

PACKED_ATTENTION = "agentrl_packed"
"""The name under which transformers finds `_attend_packed_rows`."""
_MOST_PADDING = 0.1
# What torch's own attention calls on a CPU; the public function hides the log-sum-exp.
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedGroup:
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


class AttentionPlan:
    """What the attention of one micro-batch needs, the same in each layer."""

    def __init__(self, tree: PrefixTree, device: torch.device, cut: Cut | None = None) -> None:
        """For packed tokens on `device`, of which this rank may have a piece only."""
        self.cut = cut
        self._tree = tree
        self._device = device
        self.longest = tree.longest
        self.calls = 0
        """Layers that have attended."""
        self._block_masks: dict[int | None, BlockMask] = {}

    @cached_property
    def buckets(self) -> tuple[PaddedGroup, ...]:
        """All pieces, by length."""
        return tuple(
            _make_padded_group(self._tree.offsets_S1, chosen, self._device)
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
    def positions_P(self) -> Tensor:
        """Where in its row each token is."""
        starts_P = np.repeat(self._tree.starts_S, np.diff(self._tree.offsets_S1))
        inside_P = np.concatenate([np.arange(n) for n in np.diff(self._tree.offsets_S1)])
        return torch.from_numpy(starts_P + inside_P).to(self._device)

    def block_mask(self, window: int | None = None) -> BlockMask:
        """The same for flex_attention, which skips blocks that see nothing."""
        if window not in self._block_masks:
            self._block_masks[window] = self._make_block_mask(window)
        return self._block_masks[window]

    def _make_block_mask(self, window: int | None) -> BlockMask:
        sizes = np.diff(self._tree.offsets_S1)
        end_P = torch.from_numpy(np.repeat(self._tree.ends_S, sizes)).to(self._device)

        def sees(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < end_P[key])

        def sees_near(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            assert window is not None
            near = self.positions_P[query] - self.positions_P[key] < window
            return sees(b, h, query, key) & near

        num = self._tree.num_tokens
        # Compiled, so that the mask is never there in full.
        make = create_block_mask if self._device.type == "cpu" else torch.compile(create_block_mask)
        rule = sees if window is None else sees_near
        return make(rule, None, None, num, num, device=str(self._device))

    def near(self, stem: Stem, window: int | None) -> Tensor | None:
        """[tokens behind, tokens of the stem] Which of them are within the window; None: all."""
        if window is None or self.longest <= window:
            return None
        behind_P, stem_P = (
            self.positions_P[span]
            for span in (slice(stem.stop, stem.end), slice(stem.start, stem.stop))
        )
        near = behind_P[:, None] - stem_P < window
        return None if bool(near.all()) else near

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


def _make_padded_group(
    offsets_S1: NDArray[np.int64], chosen: list[int], device: torch.device
) -> PaddedGroup:
    lengths = (offsets_S1[1:] - offsets_S1[:-1])[chosen]
    longest = int(lengths[0])
    padded = int(lengths[-1]) < longest
    if not padded and chosen == list(range(chosen[0], chosen[-1] + 1)):
        tokens: Tensor | slice = slice(int(offsets_S1[chosen[0]]), int(offsets_S1[chosen[-1] + 1]))
        return PaddedGroup(num_rows=len(chosen), longest=longest, tokens=tokens)
    spans = [np.arange(offsets_S1[piece], offsets_S1[piece + 1]) for piece in chosen]
    places = [np.arange(n) + row * longest for row, n in enumerate(lengths.tolist())]
    return PaddedGroup(
        num_rows=len(chosen),
        longest=longest,
        tokens=torch.from_numpy(np.concatenate(spans)).to(device),
        places=torch.from_numpy(np.concatenate(places)).to(device) if padded else None,
    )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: AttentionPlan,
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[P, H, D] from `query` [P, H, D] and `key` and `value` [P, G, D].

    A token sees the last `window` tokens of its row, itself included; `sinks` [H] are scores that
    take a share of the attention and add nothing.
    """
    if window is not None and window >= layout.longest:
        window = None
    if query.device.type == "cpu":
        # torch's kernel takes heads of one width only; zeros change no score.
        width = max(key.shape[-1], value.shape[-1])
        states = [nn.functional.pad(s, (0, width - s.shape[-1])) for s in (query, key, value)]
        output: Tensor = _TreeAttention.apply(  # type: ignore[no-untyped-call]  # torch's
            *states, sinks, layout, scale, window
        )
        return output[..., : value.shape[-1]]
    plain = window is None and sinks is None and not layout.stems
    if plain and _has_flash_attention() and query.dtype.itemsize == 2:
        return _attend_by_flash(query, key, value, layout, scale)
    return flex(query, key, value, layout, scale, window, sinks)


def flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: AttentionPlan,
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The same by flex_attention, which has no backward on a CPU."""
    function: Any = flex_attention if query.device.type == "cpu" else _compile_flex_once()
    states = [states.transpose(0, 1).unsqueeze(0) for states in (query, key, value)]
    mask = layout.block_mask(window)
    if sinks is None:
        output: Tensor = function(*states, block_mask=mask, scale=scale, enable_gqa=True)
    else:
        asked = AuxRequest(lse=True)
        output, found = function(
            *states, block_mask=mask, scale=scale, enable_gqa=True, return_aux=asked
        )
        share = torch.sigmoid(found.lse - sinks.to(found.lse.dtype)[:, None]).unsqueeze(-1)
        output = output * share.to(output.dtype)
    return output.squeeze(0).transpose(0, 1)


@cache
def _compile_flex_once() -> Any:
    return torch.compile(flex_attention, dynamic=True)


@cache
def _has_flash_attention() -> bool:
    return find_spec("flash_attn") is not None


def _attend_by_flash(
    query: Tensor, key: Tensor, value: Tensor, layout: AttentionPlan, scale: float
) -> Tensor:
    at, most = layout.cumulative, layout.longest
    function = import_module("flash_attn").flash_attn_varlen_func
    output: Tensor = function(
        query, key, value, at, at, most, most, softmax_scale=scale, causal=True
    )
    return output


def _attend_packed_rows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: AttentionPlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: [1, heads, P, width] to [1, P, heads, width]."""
    refuse_arguments(module, attention_mask, kwargs)
    layout.calls += 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # Under autocast rotary embeddings leave queries and keys in float32.
    states = [s.squeeze(0).transpose(0, 1).to(value.dtype) for s in (query, key, value)]
    if layout.cut is not None:
        states = [layout.cut.to_heads(s) for s in states]
        if s_aux is not None:
            s_aux = s_aux.chunk(len(layout.cut.sizes))[layout.cut.mine]
    output = attend(states[0], states[1], states[2], layout, scale, sliding_window, s_aux)
    if layout.cut is not None:
        output = layout.cut.to_tokens(output)
    return output.unsqueeze(0), None


class _TreeAttention(torch.autograd.Function):
    """`attend` on a CPU."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        layout: AttentionPlan,
        scale: float,
        window: int | None,
    ) -> Tensor:
        num, heads, _ = query.shape
        # Parts are merged in at least float32, whatever the model computes in.
        dtype = torch.promote_types(query.dtype, torch.float32)
        output = query.new_empty(num, heads, value.shape[-1], dtype=dtype)
        log_sum = query.new_empty(num, heads, dtype=dtype)
        for bucket in layout.buckets:
            rows = [_pad_rows(s, bucket) for s in (query, *_repeat_heads(key, value, heads))]
            mask = _make_window_mask(bucket.longest, window, query)
            part, part_sum = _forward(*rows, is_causal=mask is None, attn_mask=mask, scale=scale)
            _write_unpadded_rows(output, part, bucket)
            _write_unpadded_rows(log_sum, part_sum, bucket)
        for stem in layout.stems:
            behind = slice(stem.stop, stem.end)
            near, mask = _make_stem_masks(layout, stem, window, query, key)
            part, part_sum = _forward(
                *_select_stem_states(query, key, value, stem), attn_mask=mask, scale=scale
            )
            part, part_sum = (_ungroup_heads(p, heads) for p in (part, part_sum))
            if near is not None:
                # Of a token that sees nothing the kernel says 0.
                part_sum = part_sum.masked_fill(~near.any(1, keepdim=True), -torch.inf)
            _add_attended_part(output[behind], log_sum[behind], part, part_sum)
        if sinks is not None:
            # A sink is one more key, whose value is 0.
            _add_attended_part(output, log_sum, None, sinks.to(dtype).expand_as(log_sum))
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, sinks, output, log_sum)
        ctx.layout, ctx.scale, ctx.window = layout, scale, window
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, output, log_sum = ctx.saved_tensors
        layout, scale, window = ctx.layout, ctx.scale, ctx.window
        heads, groups = query.shape[1], key.shape[1]
        query_grad, key_grad, value_grad = (torch.empty_like(s) for s in (query, key, value))
        for bucket in layout.buckets:
            states = (grads[0], query, *_repeat_heads(key, value, heads), output, log_sum)
            rows = [_pad_rows(s, bucket) for s in states]
            mask = _make_window_mask(bucket.longest, window, query)
            parts = _backward(*rows, 0.0, mask is None, attn_mask=mask, scale=scale)
            _write_unpadded_rows(query_grad, parts[0], bucket)
            for grad, part in ((key_grad, parts[1]), (value_grad, parts[2])):
                _write_unpadded_rows(grad, part.unflatten(1, (groups, -1)).sum(2), bucket)
        for stem in layout.stems:
            behind = slice(stem.stop, stem.end)
            theirs = _select_stem_states(query, key, value, stem)
            mine = [_group_heads(s[behind], groups) for s in (grads[0], output, log_sum)]
            _, mask = _make_stem_masks(layout, stem, window, query, key)
            parts = _backward(
                mine[0], *theirs, mine[1], mine[2], 0.0, False, attn_mask=mask, scale=scale
            )
            query_grad[behind] += _ungroup_heads(parts[0], heads)
            for grad, part in ((key_grad, parts[1]), (value_grad, parts[2])):
                grad[stem.start : stem.stop] += part.squeeze(0).transpose(0, 1)
        sinks_grad = None
        if sinks is not None:
            shares = torch.exp(sinks.to(log_sum.dtype) - log_sum)
            sinks_grad = -(shares * (grads[0] * output).sum(-1)).sum(0).to(sinks.dtype)
        return query_grad, key_grad, value_grad, sinks_grad, None, None, None


def _add_attended_part(
    output: Tensor, log_sum: Tensor, part: Tensor | None, part_sum: Tensor
) -> None:
    """Add what other keys give, in place; without a `part` they give 0."""
    total = torch.logaddexp(log_sum, part_sum)
    output *= torch.exp(log_sum - total).unsqueeze(-1)
    if part is not None:
        output += part * torch.exp(part_sum - total).unsqueeze(-1)
    log_sum.copy_(total)


def _make_window_mask(longest: int, window: int | None, like: Tensor) -> Tensor | None:
    """[1, 1, longest, longest] Additive mask of a causal window; None where it hides nothing."""
    if window is None or longest <= window:
        return None
    mask = like.new_full((longest, longest), -torch.inf)
    places = torch.arange(longest, device=like.device)
    behind = places[:, None] - places
    return mask.masked_fill_((behind >= 0) & (behind < window), 0.0)[None, None]


def _make_stem_masks(
    layout: AttentionPlan, stem: Stem, window: int | None, query: Tensor, key: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Which tokens behind a stem see which of it, and the additive mask of grouped queries."""
    near = layout.near(stem, window)
    if near is None:
        return None, None
    hidden = (~near).repeat_interleave(query.shape[1] // key.shape[1], 0)
    return near, query.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[None, None]


def _repeat_heads(key: Tensor, value: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """[P, H, D]: a head of keys and values for each head of queries."""
    group = heads // key.shape[1]
    if group == 1:
        return key, value
    return key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)


def _pad_rows(states: Tensor, bucket: PaddedGroup) -> Tensor:
    """[rows, heads, longest, ...] of [P, heads, ...], with zeros behind the shorter rows."""
    states = states[bucket.tokens]
    if bucket.places is not None:
        padded = states.new_zeros(bucket.num_rows * bucket.longest, *states.shape[1:])
        states = padded.index_copy_(0, bucket.places, states)
    return states.view(bucket.num_rows, bucket.longest, *states.shape[1:]).transpose(1, 2)


def _write_unpadded_rows(target: Tensor, rows: Tensor, bucket: PaddedGroup) -> None:
    """The way back."""
    flat = rows.transpose(1, 2).flatten(0, 1)
    target[bucket.tokens] = (flat if bucket.places is None else flat[bucket.places]).to(
        target.dtype
    )


def _select_stem_states(query: Tensor, key: Tensor, value: Tensor, stem: Stem) -> list[Tensor]:
    """Queries behind the stem, keys and values of the stem: [1, G, tokens, D]."""
    groups = key.shape[1]
    mine = [_group_heads(s[stem.start : stem.stop], groups) for s in (key, value)]
    return [_group_heads(query[stem.stop : stem.end], groups), *mine]


def _group_heads(states: Tensor, groups: int) -> Tensor:
    """[1, G, tokens x heads of a group, ...] of [tokens, heads, ...].

    Without a mask the query heads that share a key head can be its query positions.
    """
    num, heads, *width = states.shape
    grouped = states.reshape(num, groups, heads // groups, *width).transpose(0, 1)
    return grouped.flatten(1, 2).unsqueeze(0)


def _ungroup_heads(states: Tensor, heads: int) -> Tensor:
    """The way back."""
    _, groups, _, *width = states.shape
    return states.view(groups, -1, heads // groups, *width).transpose(0, 1).flatten(1, 2)


AttentionInterface.register(PACKED_ATTENTION, _attend_packed_rows)
