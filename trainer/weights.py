"""The trainer's weights as an engine takes them: whole, or in the slices that each rank holds."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch are not typed)

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from agentrl.trainer.fsdp import local, whole
from agentrl.trainer.lora import adapted_layers, merged
from agentrl.weights.plan import Box, Bucket, Handle, Held, Layout, Move, Part, Written
from agentrl.weights.shared import attach, view

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

_MAPPED_MOST = 3
"""The two sets of a local engine, of which one serves, and the bucket of servers."""


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A `SlicedSource` over a module's own parameters: no copies, tied ones once.

    Adapters are added to what they adapt; one merged tensor exists at a time. With sharded
    parameters it is one rank's part of a source, and all ranks make the same calls.
    """

    model: nn.Module
    rank: int = 0
    _mapped: dict[Handle, Tensor] = field(default_factory=dict[Handle, Tensor], repr=False)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Again and again: an engine need not keep the tensors."""
        return self.named_tensors()

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its first name in the model without adapters, gathered."""
        for name, _ in self._list_published():
            yield name, whole(self._read_published_values(name).detach())

    def held(self) -> Mapping[str, Held]:
        """What this rank has of each parameter."""
        return {name: _describe_held(name, parameter) for name, parameter in self._list_published()}

    def _list_published(self) -> Iterator[tuple[str, Tensor]]:
        """The names that are published, and parameters that lie as what is published does."""
        layers = adapted_layers(self.model)
        for name, parameter in self.model.named_parameters():
            owner, _, leaf = name.rpartition(".base_layer.")
            if owner in layers:
                yield f"{owner}.{leaf}", parameter
            elif not layers or not parameter.requires_grad:
                yield name, parameter

    def _read_published_values(self, name: str) -> Tensor:
        owner, _, leaf = name.rpartition(".")
        module = self.model.get_submodule(owner)
        if not isinstance(module, LoraLayer):
            return module.get_parameter(leaf)
        return merged(module, leaf, module.get_base_layer().get_parameter(leaf))

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
        # Every rank makes all of them, also those that it sends nothing of: making may meet others.
        names = dict.fromkeys(move.source for move in bucket.moves)
        values = ((name, local(self._read_published_values(name))) for name in names)
        return write_slices(values, bucket, self.rank, self._mapped[memory], dtype)


@torch.no_grad()
def write_slices(
    values: Iterable[tuple[str, Tensor]], bucket: Bucket, rank: int, data: Tensor, dtype: str
) -> Written:
    """Write what one rank holds into a bucket's bytes, cast on the way."""
    kind: torch.dtype = getattr(torch, dtype)
    moves: dict[str, list[Move]] = defaultdict(list)
    for move in bucket.moves:
        if move.sender == rank:
            moves[move.source].append(move)
    written = 0
    sums: dict[str, float] = {}
    for name, value in values:
        if name in moves:
            flat = value.reshape(-1)
            sums[name] = float(torch.dot(flat, flat))
        for move in moves.get(name, ()):
            held = view(data, bucket, move.receiver, move.target, kind)
            target = held[_make_slices(move.target_box)]
            # In memory by what numpy copies with: nearly twice as quick as torch.
            source = value[_make_slices(move.source_box)]
            if target.dtype == source.dtype and source.device.type == "cpu":
                words: Any = _WORDS[target.itemsize]
                np.copyto(target.view(words).numpy(), source.view(words).numpy())
            else:
                target.copy_(source)
            written += target.nbytes
    return Written(written, sums)


def _describe_held(name: str, parameter: Tensor) -> Held:
    shape, offset = tuple(parameter.shape), (0,) * parameter.ndim
    if isinstance(parameter, DTensor):
        shape, offset = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements
        )
    box: Box = tuple((start, start + n) for start, n in zip(offset, shape, strict=True))
    return Held(tuple(shape), (Part(name, box, (0,) * len(box)),) if 0 not in shape else ())


def _make_slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
