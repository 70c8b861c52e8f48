"""Keys and values of many sequences in one tensor each, a row for a sequence."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.engine.local.demands import Heads


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Views of one layer: by row, `[row, K, position, dim]`, and flat, `[..., dim]`."""

    keys: Tensor
    values: Tensor
    flat_keys: Tensor
    flat_values: Tensor


class RowCache:
    """Keys and values, `[layer, row, K, position, dim]`, grown on demand.

    The last position of each row is scratch space: idle rows between decoding ones write there.
    """

    def __init__(self, heads: Heads, dtype: torch.dtype, device: torch.device) -> None:
        self.heads = heads
        self.rows = 0
        self.length = 0
        # Zeros, since a masked position still takes part in 0 * value, which must not be NaN.
        self.keys, self.values = (
            torch.zeros(heads.num_layers, 0, heads.kv_heads, 1, dim, dtype=dtype, device=device)
            for dim in (heads.key_dim, heads.value_dim)
        )
        self.layers: list[LayerCache] = []

    def grow(self, rows: int, length: int) -> None:
        """Make room for `rows` rows of `length` positions; what is there stays."""
        if rows <= self.rows and length <= self.length:
            return
        old, used = (self.keys, self.values), (self.rows, self.length)
        self.rows, self.length = max(rows, self.rows), max(length, self.length)
        self.allocate()
        for new, before in zip((self.keys, self.values), old, strict=True):
            new[:, : used[0], :, : used[1]] = before[..., : used[1], :]

    def free(self) -> None:
        """Give the memory back; `allocate` before the next use."""
        self.keys, self.values = self.keys[:, :0].clone(), self.values[:, :0].clone()
        self.layers = []

    def allocate(self) -> None:
        """Memory for all rows, empty."""
        heads = self.heads
        shape = (heads.num_layers, self.rows, heads.kv_heads, self.length + 1)
        self.keys = self.keys.new_zeros(*shape, heads.key_dim)
        self.values = self.values.new_zeros(*shape, heads.value_dim)
        self.layers = [
            LayerCache(keys, values, keys.view(-1, heads.key_dim), values.view(-1, heads.value_dim))
            for keys, values in zip(self.keys, self.values, strict=True)
        ]

    def index(self, rows_N: NDArray[np.int64], positions_N: NDArray[np.int64]) -> Tensor:
        """Where in the flat views the keys and values of new tokens go, `[N * K]`."""
        kv_heads, stride = self.heads.kv_heads, self.length + 1
        first_N = rows_N * (kv_heads * stride) + positions_N
        index_NK = first_N[:, None] + np.arange(kv_heads) * stride
        return torch.from_numpy(index_NK.reshape(-1)).to(self.keys.device)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a row."""
        for data in (self.keys, self.values):
            data[:, target, :, :length] = data[:, source, :, :length]

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` positions of two rows."""
        kept = [data[:, a, :, :length].clone() for data in (self.keys, self.values)]
        self.copy(b, a, length)
        for data, first in zip((self.keys, self.values), kept, strict=True):
            data[:, b, :, :length] = first

    def clear(self, row: int) -> None:
        """Forget what a row holds, also numbers that are not finite."""
        self.keys[:, row] = 0
        self.values[:, row] = 0
