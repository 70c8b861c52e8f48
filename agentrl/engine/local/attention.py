"""Attention over the rows of a cache, as a function that transformers' model code calls.

One forward pass takes a flat list of N new tokens without padding: first one token for each of
the rows `0..D-1` (decoding), then pieces of prompts. Attention is one call for all decoding rows,
cropped to the longest of them, and one call for each piece.

Suffixes: N new tokens, D decoding rows, H query heads, K key/value heads, L cached positions.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentrl.engine.local.cache import LayerCache, RowCache

ATTENTION = "agentrl_rows"
"""The name under which transformers finds `row_attention`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """New tokens `start..stop-1` of the flat list, which end a row at position `length`."""

    start: int
    stop: int
    row: int
    length: int
    mask: Tensor
    """Additive, `[1, 1, H // K * (stop - start), length]`."""


@dataclass(slots=True)
class Plan:
    """Where the new tokens of one forward pass belong and what they attend to."""

    cache: RowCache
    index: Tensor
    """Where their keys and values go in the flat cache, `[N * K]`."""
    num_decode: int
    decode_length: int
    decode_mask: Tensor | None
    pieces: list[Piece]
    calls: int = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: int, scale: float) -> Tensor:
        """Store the new keys and values `[1, K, N, dim]`, attend with `query` `[1, H, N, dim]`."""
        self.calls += 1
        cached = self.cache.layers[layer]
        dim = key.shape[-1]
        # The projections are laid out token by token, so these transposed views copy nothing.
        cached.flat_keys.index_copy_(0, self.index, key.transpose(1, 2).reshape(-1, dim))
        cached.flat_values.index_copy_(0, self.index, value.transpose(1, 2).reshape(-1, dim))
        parts: list[Tensor] = []
        if self.num_decode:
            parts.append(self._decode(query, cached, scale))
        parts += [_prefill(piece, query, cached, scale) for piece in self.pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _decode(self, query: Tensor, cached: LayerCache, scale: float) -> Tensor:
        rows, length = self.num_decode, self.decode_length
        _, heads, num, dim = query.shape
        # The query heads that share a key head become its query positions: no repeated keys.
        grouped = query.transpose(1, 2).reshape(num, cached.keys.shape[1], -1, dim)
        out = scaled_dot_product_attention(
            grouped[:rows],
            cached.keys[:rows, :, :length],
            cached.values[:rows, :, :length],
            attn_mask=self.decode_mask,
            scale=scale,
        )
        return out.reshape(1, rows, heads, dim)


def _prefill(piece: Piece, query: Tensor, cached: LayerCache, scale: float) -> Tensor:
    _, heads, _, dim = query.shape
    num = piece.stop - piece.start
    rows = slice(piece.row, piece.row + 1)
    grouped = query[:, :, piece.start : piece.stop].reshape(1, cached.keys.shape[1], -1, dim)
    out = scaled_dot_product_attention(
        grouped,
        cached.keys[rows, :, : piece.length],
        cached.values[rows, :, : piece.length],
        attn_mask=piece.mask,
        scale=scale,
    )
    return out.reshape(1, heads, num, dim).transpose(1, 2)


def decode_mask(
    lengths_D: NDArray[np.int64], dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Additive mask `[D, 1, 1, L]`: row d sees its first `lengths_D[d]` positions, or None: all."""
    longest = int(lengths_D.max(initial=0))
    if (lengths_D == longest).all():
        return None
    hidden = np.arange(longest) >= lengths_D[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    mask.masked_fill_(torch.from_numpy(hidden).to(device), -torch.inf)
    return mask[:, None, None, :]


def causal_mask(
    num: int, length: int, group: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Additive mask `[1, 1, group * num, length]` for the last `num` of `length` positions."""
    mask = torch.full((num, length), -torch.inf, dtype=dtype, device=device)
    mask = mask.triu_(length - num + 1)
    return mask.repeat(group, 1)[None, None]


def row_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    plan: Plan,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers' model code calls in each layer."""
    layer = module.layer_idx
    if not isinstance(layer, int) or kwargs.get("softcap") or kwargs.get("sliding_window"):
        raise NotImplementedError("attention other than plain and full is not served")
    return plan.attend(query, key, value, layer, scaling), None


AttentionInterface.register(ATTENTION, row_attention)
