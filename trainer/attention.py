"""Causal attention over packed rows, without a mask.

A dense mask over the packed tokens costs the square of all of them; one call per row is slow for
many short rows. Rows of nearly equal length are therefore padded on the right, inside the
attention only, and go through one call: a causal row never sees the padding behind it, so the
result is exact and needs no mask.

Suffixes: P packed tokens, F padded tokens of one bucket.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from agentrl.errors import ConfigError

NAME = "agentrl_packed"
_MOST_PADDING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Neighbouring rows that share one attention call."""

    start: int
    stop: int
    """The rows' tokens are the packed tokens from `start` to `stop`."""
    num_rows: int
    longest: int
    places: Tensor | None
    """Where each token is among the padded ones; None if the rows are equally long."""


def buckets(lengths: tuple[int, ...], device: torch.device) -> tuple[Bucket, ...]:
    """Cut packed rows into runs whose padding is at most a tenth of each row."""
    result: list[Bucket] = []
    first = start = 0
    while first < len(lengths):
        end = first + 1
        shortest = longest = lengths[first]
        while end < len(lengths):
            shortest, longest = min(shortest, lengths[end]), max(longest, lengths[end])
            if shortest < longest * (1 - _MOST_PADDING):
                break
            end += 1
        bucket = _bucket(lengths[first:end], start, device)
        result.append(bucket)
        first, start = end, bucket.stop
    return tuple(result)


def _bucket(lengths: tuple[int, ...], start: int, device: torch.device) -> Bucket:
    longest = max(lengths)
    places = None
    if min(lengths) < longest:
        rows = [torch.arange(n) + row * longest for row, n in enumerate(lengths)]
        places = torch.cat(rows).to(device)
    return Bucket(
        start=start,
        stop=start + sum(lengths),
        num_rows=len(lengths),
        longest=longest,
        places=places,
    )


@contextmanager
def row_attention(model: PreTrainedModel) -> Generator[None, None, None]:
    """Let the model attend by rows inside, and as before afterwards: an engine may share it."""
    # transformers offers a public way to set the implementation, none to ask for it.
    before = str(model.config._attn_implementation)  # pyright: ignore[reportPrivateUsage]
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_buckets: tuple[Bucket, ...],
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: [1, heads, P, width] to [1, P, heads, width]."""
    longest = max(bucket.longest for bucket in row_buckets)
    if softcap is not None or s_aux is not None or (sliding_window or longest) < longest:
        raise ConfigError(
            f"{type(module).__name__} uses soft-capped, sink or sliding-window attention, which "
            "the trainer does not compute; choose a model with plain causal attention"
        )
    query, key, value = _tokens_first(query), _tokens_first(key), _tokens_first(value)
    outputs = [_attend_bucket(query, key, value, bucket, scaling) for bucket in row_buckets]
    return torch.cat(outputs).unsqueeze(0), None


def _tokens_first(states: Tensor) -> Tensor:
    return states.squeeze(0).transpose(0, 1).contiguous()


def _attend_bucket(
    query: Tensor, key: Tensor, value: Tensor, bucket: Bucket, scaling: float | None
) -> Tensor:
    """[tokens, heads, width] of the bucket's rows."""
    output = functional.scaled_dot_product_attention(
        _to_rows(query, bucket),
        _to_rows(key, bucket),
        _to_rows(value, bucket),
        is_causal=True,
        scale=scaling,
        enable_gqa=True,
    )
    flat = output.transpose(1, 2).reshape(-1, *output.shape[1::2])
    return flat if bucket.places is None else _gather(flat, bucket.places)


def _to_rows(states: Tensor, bucket: Bucket) -> Tensor:
    """[rows, heads, longest, width], with zeros behind the shorter rows."""
    states = states[bucket.start : bucket.stop]
    if bucket.places is not None:
        states = _scatter(states, bucket.places, bucket.num_rows * bucket.longest)
    return states.view(bucket.num_rows, bucket.longest, *states.shape[1:]).transpose(1, 2)


class _Scatter(torch.autograd.Function):
    """Tokens to their places among zeros. Each place is used once, so both ways are copies."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, places: Tensor, num_padded: int) -> Tensor:
        ctx.save_for_backward(places)
        return states.new_zeros(num_padded, *states.shape[1:]).index_copy_(0, places, states)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grads[0].index_select(0, places), None, None


class _Gather(torch.autograd.Function):
    """The way back."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.num_padded = padded.shape[0]
        return padded.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        grad = grads[0]
        return grad.new_zeros(ctx.num_padded, *grad.shape[1:]).index_copy_(0, places, grad), None


def _scatter(states: Tensor, places: Tensor, num_padded: int) -> Tensor:
    padded = _Scatter.apply(states, places, num_padded)  # type: ignore[no-untyped-call]  # torch's
    return cast(Tensor, padded)


def _gather(padded: Tensor, places: Tensor) -> Tensor:
    states = _Gather.apply(padded, places)  # type: ignore[no-untyped-call]  # torch's
    return cast(Tensor, states)


AttentionInterface.register(NAME, _attend)
