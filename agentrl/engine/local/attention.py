"""Attention over the rows of a cache, as a function that transformers' model code calls.

One forward pass takes a flat list of N new tokens without padding: first one token for each of
the rows `0..D-1` (decoding), then pieces of prompts. Attention is one call for all decoding rows,
cropped to the longest of them, and one call for each piece.

Suffixes: N new tokens, D decoding rows, H query heads, K key/value heads, L cached positions.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.engine.local.demands import refuse_arguments
from agentrl.engine.local.rows import LayerCache, RowCache

ATTENTION = "agentrl_rows"
"""The name under which transformers finds `row_attention`."""


@dataclass(frozen=True, slots=True)
class CachedPiece:
    """New tokens `start..stop-1` of the flat list, which end a row at position `length`."""

    start: int
    stop: int
    row: int
    length: int


@dataclass(slots=True)
class DecodePlan:
    """Where the new tokens of one forward pass belong and what they attend to."""

    cache: RowCache
    index: Tensor
    """Where their keys and values go in the flat cache, `[N * K]`."""
    lengths_D: NDArray[np.int64]
    """How many positions each decoding row attends to."""
    pieces: list[CachedPiece]
    calls: list[int] = field(default_factory=list[int])
    """The layers that have attended."""
    _masks: dict[int | None, list[Tensor | None]] = field(
        default_factory=dict[int | None, list[Tensor | None]]
    )
    """By window: that of the decoding rows, then those of the pieces."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layer: int,
        scale: float,
        window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Store the new keys and values `[1, K, N, dim]`, attend with `query` `[1, H, N, dim]`.

        A token sees the last `window` positions, its own included; `sinks` are scores, one for each
        query head, that take a share of the attention and add nothing.
        """
        self.calls.append(layer)
        cached = self.cache.layers[layer]
        # The projections are laid out token by token, so these transposed views copy nothing.
        for flat, new in ((cached.flat_keys, key), (cached.flat_values, value)):
            flat.index_copy_(0, self.index, new.transpose(1, 2).reshape(-1, new.shape[-1]))
        if window not in self._masks:
            self._masks[window] = self._make_attention_masks(window)
        masks = self._masks[window]
        parts: list[Tensor] = []
        if len(self.lengths_D):
            parts.append(self._attend_decoding_rows(query, cached, masks[0], scale, sinks))
        for piece, mask in zip(self.pieces, masks[1:], strict=True):
            assert mask is not None
            parts.append(_attend_prompt_piece(piece, query, cached, mask, scale, sinks))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _make_attention_masks(self, window: int | None) -> list[Tensor | None]:
        dtype, device = self.cache.keys.dtype, self.cache.keys.device
        group = self.cache.heads.group
        return [
            decode_mask(self.lengths_D, dtype, device, window),
            *(
                causal_mask(p.stop - p.start, p.length, group, dtype, device, window)
                for p in self.pieces
            ),
        ]

    def _attend_decoding_rows(
        self,
        query: Tensor,
        cached: LayerCache,
        mask: Tensor | None,
        scale: float,
        sinks: Tensor | None,
    ) -> Tensor:
        rows, length = len(self.lengths_D), int(self.lengths_D.max())
        num, dim = query.shape[2:]
        # The query heads that share a key head become its query positions: no repeated keys.
        grouped = query.transpose(1, 2).reshape(num, cached.keys.shape[1], -1, dim)
        keys, values = cached.keys[:rows, :, :length], cached.values[:rows, :, :length]
        out = _attend_grouped_heads(grouped[:rows], keys, values, mask, scale, sinks)
        return out.reshape(1, rows, -1, values.shape[-1])


@dataclass(frozen=True, slots=True)
class FlatPass:
    """The tokens of one forward pass."""

    plan: DecodePlan
    owners_N: NDArray[np.int64]
    """The row of each token."""
    positions_N: NDArray[np.int64]
    writes_N: NDArray[np.int64]
    """Where in its row it is kept; the cache's length if it is not."""


def lay_out(
    cache: RowCache,
    filled_R: NDArray[np.int64],
    decoding: NDArray[np.int64],
    spans: Sequence[tuple[int, int]],
) -> FlatPass:
    """One more token for each of the `decoding` rows, which are sorted; some for those of `spans`.

    Args:
        cache: the keys and values.
        filled_R: how many positions of each row it holds.
        decoding: rows that compute one token.
        spans: rows that compute several, and how many.
    """
    num_decode = int(decoding[-1]) + 1 if len(decoding) else 0
    active_D = np.isin(np.arange(num_decode), decoding)
    positions = [np.where(active_D, filled_R[:num_decode], 0)]
    # An idle row between decoding ones computes nonsense and stores it where nobody reads.
    writes = [np.where(active_D, filled_R[:num_decode], cache.length)]
    owners = [np.arange(num_decode)]
    pieces: list[CachedPiece] = []
    start = num_decode
    for row, num in spans:
        first = int(filled_R[row])
        pieces.append(CachedPiece(start, start + num, row, first + num))
        positions.append(np.arange(first, first + num))
        writes.append(positions[-1])
        owners.append(np.full(num, row))
        start += num
    owners_N, writes_N = np.concatenate(owners), np.concatenate(writes)
    plan = DecodePlan(cache, cache.index(owners_N, writes_N), positions[0] + 1, pieces)
    return FlatPass(plan, owners_N, np.concatenate(positions), writes_N)


def _attend_prompt_piece(
    piece: CachedPiece,
    query: Tensor,
    cached: LayerCache,
    mask: Tensor,
    scale: float,
    sinks: Tensor | None,
) -> Tensor:
    num, dim = piece.stop - piece.start, query.shape[-1]
    rows = slice(piece.row, piece.row + 1)
    grouped = query[:, :, piece.start : piece.stop].reshape(1, cached.keys.shape[1], -1, dim)
    keys, values = cached.keys[rows, :, : piece.length], cached.values[rows, :, : piece.length]
    out = _attend_grouped_heads(grouped, keys, values, mask, scale, sinks)
    return out.reshape(1, -1, num, values.shape[-1]).transpose(1, 2)


def _attend_grouped_heads(
    grouped: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    sinks: Tensor | None,
) -> Tensor:
    """`[rows, K, H // K * queries, dim]`, the queries of a head beside each other."""
    if sinks is None:
        return scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    # torch's own kernels neither take sinks nor tell the sum that they would be added to.
    scores = (grouped @ keys.transpose(-1, -2)).float() * scale
    if mask is not None:
        scores = scores + mask
    rows, heads, num, _ = scores.shape
    column = sinks.float().view(heads, -1, 1).expand(heads, -1, num * heads // len(sinks))
    column = column.reshape(1, heads, num, 1).expand(rows, -1, -1, -1)
    shares = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    return shares.to(values.dtype) @ values


def decode_mask(
    lengths_D: NDArray[np.int64],
    dtype: torch.dtype,
    device: torch.device,
    window: int | None = None,
) -> Tensor | None:
    """Additive mask `[D, 1, 1, L]`: row d sees its first `lengths_D[d]` positions, or None: all.

    With a `window` it sees the last ones of these.
    """
    longest = int(lengths_D.max(initial=0))
    if (lengths_D == longest).all() and (window is None or longest <= window):
        return None
    places = np.arange(longest)
    hidden = places >= lengths_D[:, None]
    if window is not None:
        hidden |= places < lengths_D[:, None] - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    mask.masked_fill_(torch.from_numpy(hidden).to(device), -torch.inf)
    return mask[:, None, None, :]


def causal_mask(
    num: int,
    length: int,
    group: int,
    dtype: torch.dtype,
    device: torch.device,
    window: int | None = None,
) -> Tensor:
    """Additive mask `[1, 1, group * num, length]` for the last `num` of `length` positions.

    With a `window` each sees itself and the ones before, so many in all.
    """
    places = torch.arange(length, device=device)
    ahead = places - places[length - num :, None]
    hidden = ahead > 0 if window is None else (ahead > 0) | (ahead <= -window)
    mask = torch.zeros(num, length, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    return mask.repeat(group, 1)[None, None]


def row_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    plan: DecodePlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers' model code calls in each layer."""
    refuse_arguments(module, attention_mask, kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]  # measured at the start
    # Under autocast rotary embeddings leave queries and keys in float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    return plan.attend(query, key, value, layer, scale, sliding_window, s_aux), None


AttentionInterface.register(ATTENTION, row_attention)
