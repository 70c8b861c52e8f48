"""The trainer's weights as an engine takes them: whole, or in the slices that each rank holds."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch are not typed)

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from agentrl.engine.local.shared import attach, view
from agentrl.engine.reshard import Box, Bucket, Handle, Held, Layout, Part, Written
from agentrl.trainer.shard import local

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

_MAPPED_MOST = 3
"""The two sets of a local engine, of which one serves, and the bucket of servers."""


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A `SlicedSource` over a module's own parameters: no copies, tied ones once.

    With sharded parameters it is one rank's part of one.
    """

    model: nn.Module
    rank: int = 0
    _mapped: dict[Handle, Tensor] = field(default_factory=dict[Handle, Tensor], repr=False)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its first name; sharded ones are gathered by all ranks at once."""
        for name, parameter in self.model.named_parameters():
            values = parameter.detach()
            yield name, values.full_tensor() if isinstance(values, DTensor) else values

    def held(self) -> Mapping[str, Held]:
        """What this rank has of each parameter."""
        return {name: _held(name, value) for name, value in self.model.named_parameters()}

    def layout(self) -> Layout:
        """That of the only rank."""
        return [self.held()]

    async def write(self, bucket: Bucket, memory: Handle, dtype: str) -> Sequence[Written]:
        """Write everything, as the only rank."""
        return [self.write_own(bucket, memory, dtype)]

    def write_own(self, bucket: Bucket, memory: Handle, dtype: str) -> Written:
        """Write this rank's moves into a bucket.

        The memory stays mapped, since mapping it anew would cost more than the copy.
        """
        if memory not in self._mapped:
            if len(self._mapped) == _MAPPED_MOST:
                self._mapped.pop(next(iter(self._mapped)))
            self._mapped[memory] = attach(memory)
        names = {move.source for move in bucket.moves if move.sender == self.rank}
        values = {name: self.model.get_parameter(name) for name in names}
        return write_slices(values, bucket, self.rank, self._mapped[memory], dtype)


@torch.no_grad()
def write_slices(
    values: Mapping[str, Tensor], bucket: Bucket, rank: int, data: Tensor, dtype: str
) -> Written:
    """Write what one rank holds into a bucket's bytes, cast on the way."""
    kind: torch.dtype = getattr(torch, dtype)
    written = 0
    ours: dict[str, Tensor] = {}
    sums: dict[str, float] = {}
    for move in bucket.moves:
        if move.sender != rank:
            continue
        if move.source not in ours:
            ours[move.source] = local(values[move.source])
            flat = ours[move.source].reshape(-1)
            sums[move.source] = float(torch.dot(flat, flat))
        source = ours[move.source][_index(move.source_box)]
        target = view(data, bucket, move.receiver, move.target, kind)[_index(move.target_box)]
        _copy(target, source)
        written += target.nbytes
    return Written(written, sums)


def _copy(target: Tensor, source: Tensor) -> None:
    """In memory by what numpy copies with: nearly twice as quick as torch."""
    if target.dtype == source.dtype and source.device.type == "cpu":
        words: Any = _WORDS[target.itemsize]
        np.copyto(target.view(words).numpy(), source.view(words).numpy())
    else:
        target.copy_(source)


def _held(name: str, parameter: Tensor) -> Held:
    shape, offset = tuple(parameter.shape), (0,) * parameter.ndim
    if isinstance(parameter, DTensor):
        shape, offset = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
    box: Box = tuple((start, start + n) for start, n in zip(offset, shape, strict=True))
    return Held(tuple(shape), (Part(name, box, (0,) * len(box)),) if 0 not in shape else ())


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
