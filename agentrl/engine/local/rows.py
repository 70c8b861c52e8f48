"""Which sequence lives in which row of the cache: sessions, prefixes, eviction, order; its draws.

`RowCache` holds keys and values, in one tensor each, a row for a sequence; `Rows` says whose a row
is. Tokens are drawn by inverse CDF from counter-based random numbers, nothing truncated. The draw
of a sequence depends on its seed, its position and its own distribution only, never on its
neighbours in the batch. Suffixes: R rows, P positions, B sequences, V vocabulary.
"""

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


_KEEP_STEPS = 32
"""A new session takes the row of one that was idle for so many steps, or if nothing runs."""
_WORTH_WAITING = 4
"""A request waits for a running prefill of its prefix if that saves so many tokens."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BLOCK = 128


class Rows:
    """The tokens of each row, and how many of them have keys and values.

    `known_R` counts a row's tokens, `filled_R` those in the cache. A busy row has a running
    request; an idle one keeps what it has for its session's next turn.
    """

    def __init__(self, cache: RowCache, slots: int) -> None:
        self.cache = cache
        self.slots = slots
        self.steps = 0
        self.tokens_RP = np.zeros((0, 0), dtype=np.int64)
        self.experts_RP = np.zeros((0, 0, 0, 0), dtype=np.int16)
        """The experts that each token in the cache went to, [R, P, layers, chosen]; see `note`."""
        self.known_R = np.zeros(0, dtype=np.int64)
        self.filled_R = np.zeros(0, dtype=np.int64)
        self.busy_R = np.zeros(0, dtype=np.bool_)
        self._used_R = np.zeros(0, dtype=np.int64)
        self._owner: list[str | None] = []
        self._row_of: dict[str, int] = {}
        self._key: list[str | None] = []
        """Prefixes are shared among rows of one key."""

    def find(
        self, session: str, ids_P: NDArray[np.int64], room: int, key: str | None = None
    ) -> tuple[int, int] | None:
        """A row for the session with `ids_P` in it, and how many of them are cached.

        None says that it must wait: for a row, or for another request that is computing its prefix.
        """
        row = self._row_of.get(session)
        if row is not None:
            num = min(len(ids_P), int(self.known_R[row]))
            differs = self.tokens_RP[row, :num] != ids_P[:num]
            same = int(differs.argmax()) if differs.any() else num
            cached = min(same, len(ids_P) - 1, int(self.filled_R[row]))
        else:
            donor, cached = self._find_row_of_prefix(ids_P[:-1], key)
            if cached < 0 or (row := self._choose_or_evict_cache_row(donor, cached)) is None:
                return None
            self._grow_cache_row_arrays(row, room)
            if cached and donor != row:
                self.cache.copy(donor, row, cached)
                self.experts_RP[row, :cached] = self.experts_RP[donor, :cached]
            self._owner[row], self._key[row] = session, key
            self._row_of[session] = row
        self._grow_cache_row_arrays(row, room)
        self.tokens_RP[row, : len(ids_P)] = ids_P
        self.known_R[row], self.filled_R[row], self.busy_R[row] = len(ids_P), cached, True
        return row, cached

    def note(
        self, rows: NDArray[np.int64], places: NDArray[np.int64], experts: NDArray[np.int64]
    ) -> None:
        """Keep the experts of computed tokens, [tokens, layers, chosen]."""
        if self.experts_RP.shape[2:] != experts.shape[1:]:
            shape = (*self.tokens_RP.shape, *experts.shape[1:])
            self.experts_RP = np.zeros(shape, dtype=np.int16)
        self.experts_RP[rows, places] = experts

    def release(self, row: int) -> None:
        """The row's request has ended; its session may come back."""
        self.busy_R[row] = False
        self.known_R[row] = self.filled_R[row]
        self._used_R[row] = self.steps

    def drop(self, session: str) -> None:
        """Forget an idle session."""
        row = self._row_of.get(session)
        if row is not None and not self.busy_R[row]:
            self._release_cache_row(row)

    def leave(self, session: str) -> None:
        """End an idle session, but keep what its row holds until somebody needs the row."""
        row = self._row_of.get(session)
        if row is not None and not self.busy_R[row]:
            self._owner[self._row_of.pop(session)] = None

    def invalidate(self) -> None:
        """The weights changed: idle rows are emptied, busy ones compute theirs again."""
        self.filled_R[:] = 0
        for row in np.flatnonzero(~self.busy_R).tolist():
            self._release_cache_row(row)

    def compact(self) -> list[tuple[int, int]]:
        """Move busy rows down until few idle ones lie between; gives the pairs exchanged."""
        moved: list[tuple[int, int]] = []
        while self.busy_R.any():
            top = int(np.flatnonzero(self.busy_R)[-1])
            hole = int(self.busy_R.argmin())
            num_busy = int(self.busy_R.sum())
            if top + 1 - num_busy <= max(2, num_busy // 4):
                break
            self._swap_cache_rows(top, hole)
            moved.append((top, hole))
        return moved

    def _find_row_of_prefix(self, prefix_P: NDArray[np.int64], key: str | None) -> tuple[int, int]:
        """The row that shares most of the prefix and how many positions; -1 to wait for it."""
        num = min(len(prefix_P), self.tokens_RP.shape[1])
        if not num or not len(self.known_R):
            return 0, 0
        differs = self.tokens_RP[:, :num] != prefix_P[:num]
        same_R = np.where(differs.any(axis=1), differs.argmax(axis=1), num)
        same_R = np.minimum(same_R, self.known_R) * np.array([k == key for k in self._key])
        ready_R = np.minimum(same_R, self.filled_R)
        best = int(ready_R.argmax())
        coming = int(np.where(self.busy_R, same_R, 0).max())
        if coming >= int(ready_R[best]) + _WORTH_WAITING:
            return best, -1
        return best, int(ready_R[best])

    def _choose_or_evict_cache_row(self, donor: int, cached: int) -> int | None:
        """A row for a new session: what it holds is lost, but for the donor's prefix.

        The donor itself if all of it is wanted and nobody owns it; else an empty row, a new one, or
        that which was idle longest.
        """
        if cached and self._owner[donor] is None and cached == self.known_R[donor]:
            return donor
        for row, owner in enumerate(self._owner):
            if owner is None and not self.known_R[row]:
                return row
        if len(self._owner) < self.slots:
            return len(self._owner)
        idle = np.flatnonzero(~self.busy_R)
        if not len(idle):
            return None
        row = int(idle[self._used_R[idle].argmin()])
        owned = self._owner[row] is not None
        if owned and self.busy_R.any() and self.steps - self._used_R[row] < _KEEP_STEPS:
            return None
        keeps_donor = row != donor
        self._release_cache_row(row, forget=keeps_donor)
        return row

    def _release_cache_row(self, row: int, *, forget: bool = True) -> None:
        owner = self._owner[row]
        if owner is not None:
            del self._row_of[owner]
        self._owner[row] = None
        if forget:
            self.known_R[row] = self.filled_R[row] = 0

    def _grow_cache_row_arrays(self, row: int, room: int) -> None:
        """Make the arrays hold `row` and `room` positions; sizes double, so growth is rare."""
        rows, length = self.tokens_RP.shape
        new_rows = rows if row < rows else min(self.slots, max(8, 2 * rows))
        new_length = length if room <= length else max(128, 1 << (room - 1).bit_length())
        if (new_rows, new_length) == (rows, length):
            return
        self.cache.grow(new_rows, new_length)
        tokens = np.zeros((new_rows, new_length), dtype=np.int64)
        tokens[:rows, :length] = self.tokens_RP
        self.tokens_RP = tokens
        grown = ((0, new_rows - rows), (0, new_length - length), (0, 0), (0, 0))
        self.experts_RP = np.pad(self.experts_RP, grown)
        more = (0, new_rows - rows)
        self.known_R, self.filled_R = np.pad(self.known_R, more), np.pad(self.filled_R, more)
        self.busy_R, self._used_R = np.pad(self.busy_R, more), np.pad(self._used_R, more)
        self._owner += [None] * (new_rows - rows)
        self._key += [None] * (new_rows - rows)

    def _swap_cache_rows(self, a: int, b: int) -> None:
        self.cache.swap(a, b, int(max(self.filled_R[a], self.filled_R[b])))
        pair, swapped = [a, b], [b, a]
        arrays = (self.tokens_RP, self.experts_RP, self.known_R, self.filled_R, self.busy_R)
        for array in (*arrays, self._used_R):
            array[pair] = array[swapped]
        self._owner[a], self._owner[b] = self._owner[b], self._owner[a]
        self._key[a], self._key[b] = self._key[b], self._key[a]
        for row in pair:
            owner = self._owner[row]
            if owner is not None:
                self._row_of[owner] = row


def draw_uniforms(
    seeds_B: NDArray[np.uint64], positions_B: NDArray[np.int64]
) -> NDArray[np.float64]:
    """One number in [0, 1) for each pair of seed and position (splitmix64, 53 bits)."""
    with np.errstate(over="ignore"):
        bits_B = _mix_random_bits(
            _mix_random_bits(seeds_B) + positions_B.astype(np.uint64) * _GOLDEN
        )
    return (bits_B >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix_random_bits(state_B: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed_B = state_B + _GOLDEN
    mixed_B = (mixed_B ^ (mixed_B >> np.uint64(30))) * _MIX_1
    mixed_B = (mixed_B ^ (mixed_B >> np.uint64(27))) * _MIX_2
    return mixed_B ^ (mixed_B >> np.uint64(31))


def draw_ids(
    logits_BV: Tensor, temperatures_B: NDArray[np.float32], uniforms_B: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The drawn ids and their natural logprobs under the sampling distribution.

    A temperature of 0 takes the most likely id and gives its logprob at temperature 1. A logprob
    that is not finite says that the model's output was not.
    """
    greedy_B = temperatures_B == 0
    scale_B = np.where(greedy_B, 1.0, temperatures_B).astype(np.float32)
    logits_BV = logits_BV.float()
    if (scale_B != 1).any():
        logits_BV = logits_BV / torch.from_numpy(scale_B).to(logits_BV.device)[:, None]
    logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
    if greedy_B.all():
        ids_B = logprobs_BV.argmax(dim=-1)
    else:
        ids_B = _sample_by_inverse_cdf(logprobs_BV.exp(), torch.from_numpy(uniforms_B))
        if greedy_B.any():
            is_greedy_B = torch.from_numpy(greedy_B).to(ids_B.device)
            ids_B = torch.where(is_greedy_B, logprobs_BV.argmax(dim=-1), ids_B)
    chosen_B = logprobs_BV.gather(1, ids_B[:, None])[:, 0]
    return ids_B.cpu().numpy(), chosen_B.cpu().numpy()


def _sample_by_inverse_cdf(probs_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The first id at which the cumulative probability exceeds `uniform * total`.

    Two levels, so that only one pass reads the whole vocabulary: the block of ids first, then the
    id in its block; sums of blocks and the search are in float64.
    """
    batch, vocab = probs_BV.shape
    if vocab % _BLOCK:
        probs_BV = torch.nn.functional.pad(probs_BV, (0, -vocab % _BLOCK))
    blocks = probs_BV.view(batch, -1, _BLOCK)
    cdf = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target = uniforms_B.to(cdf.device)[:, None] * cdf[:, -1:]
    block = torch.searchsorted(cdf, target, right=True).clamp_(max=cdf.shape[1] - 1)
    before = torch.where(block > 0, cdf.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inner = blocks[torch.arange(batch, device=cdf.device), block[:, 0]]
    inner_cdf = inner.to(torch.float64).cumsum(dim=-1)
    # Just below the block's own mass, so that rounding cannot choose an id of probability zero.
    limit = torch.nextafter(inner_cdf[:, -1:], torch.zeros_like(target))
    within = torch.searchsorted(inner_cdf, torch.minimum(target - before, limit), right=True)
    return (block * _BLOCK + within)[:, 0].clamp_(max=vocab - 1)
