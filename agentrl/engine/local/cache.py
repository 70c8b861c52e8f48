"""Keys and values of many sequences in one tensor, a row each."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Views of one layer: by row, `[row, K, position, head_dim]`, and flat, `[..., head_dim]`."""

    keys: Tensor
    values: Tensor
    flat_keys: Tensor
    flat_values: Tensor


class RowCache:
    """Keys and values, `[layer, key or value, row, K, position, head_dim]`, grown on demand.

    The last position of each row is scratch space: idle rows between decoding ones write there.
    """

    def __init__(self, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> None:
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.num_layers: int = config.num_hidden_layers
        self.rows = 0
        self.length = 0
        shape = (self.num_layers, 2, 0, kv_heads, 1, head_dim)
        # Zeros, since a masked position still takes part in 0 * value, which must not be NaN.
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.layers: list[LayerCache] = []

    def grow(self, rows: int, length: int) -> None:
        """Make room for `rows` rows of `length` positions; what is there stays."""
        if rows <= self.rows and length <= self.length:
            return
        old, used = self.data, (self.rows, self.length)
        self.rows, self.length = max(rows, self.rows), max(length, self.length)
        self.allocate()
        self.data[:, :, : used[0], :, : used[1]] = old[..., : used[1], :]

    def free(self) -> None:
        """Give the memory back; `allocate` before the next use."""
        self.data = self.data[:, :, :0].clone()
        self.layers = []

    def allocate(self) -> None:
        """Memory for all rows, empty."""
        layers, two, _, kv_heads, _, head_dim = self.data.shape
        self.data = self.data.new_zeros(layers, two, self.rows, kv_heads, self.length + 1, head_dim)
        self.layers = [
            LayerCache(keys, values, keys.view(-1, head_dim), values.view(-1, head_dim))
            for keys, values in self.data
        ]

    def index(self, rows_N: NDArray[np.int64], positions_N: NDArray[np.int64]) -> Tensor:
        """Where in the flat views the keys and values of new tokens go, `[N * K]`."""
        kv_heads, stride = self.data.shape[3], self.length + 1
        first_N = rows_N * (kv_heads * stride) + positions_N
        index_NK = first_N[:, None] + np.arange(kv_heads) * stride
        return torch.from_numpy(index_NK.reshape(-1)).to(self.data.device)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a row."""
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` positions of two rows."""
        kept = self.data[:, :, a, :, :length].clone()
        self.copy(b, a, length)
        self.data[:, :, b, :, :length] = kept

    def clear(self, row: int) -> None:
        """Forget what a row holds, also numbers that are not finite."""
        self.data[:, :, row] = 0
