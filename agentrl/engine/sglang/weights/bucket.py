"""Tensors as the server reads them: flat buckets, pickled under the server's own names."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and safetensors are not typed)

import base64
import io
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from agentrl.engine.servers.weights import Named

BUCKET_BYTES = 512 << 20
METADATA = ("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata")
"""The class that the server reads a tensor's place from."""


@dataclass
class FlattenedTensorMetadata:
    """Where in a bucket a tensor is, in bytes.

    Stands in for the server's own class, which it is pickled as: SGLang is not installed here.
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start_idx: int
    end_idx: int
    numel: int


class _Pickler(pickle._Pickler):  # pyright: ignore[reportPrivateUsage]
    """Writes the stand-in under the name that the server's allow-list knows.

    The pure-Python pickler, since the other one imports what it names.
    """

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Name a class or function."""
        if obj is not FlattenedTensorMetadata:
            super().save_global(obj, name)  # type: ignore[misc]
            return
        for part in METADATA:
            self.save(part)  # type: ignore[attr-defined]
        self.write(pickle.STACK_GLOBAL)  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class DigestedBucket:
    """Tensors of one dtype, one after the other in a flat tensor of bytes."""

    data: Tensor
    metadata: Sequence[FlattenedTensorMetadata]

    def packed(self) -> str:
        """As text for `/update_weights_from_tensor`.

        A CPU's bytes go by value: torch shares them by a helper process that would live, with our
        standard output open, as long as the server. A GPU's memory is shared and lives as long as
        `data`.
        """
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, protocol=4)
        if self.data.device.type != "cpu":
            pickler.dispatch_table = ForkingPickler(io.BytesIO()).dispatch_table
        pickler.dump({"flattened_tensor": self.data, "metadata": list(self.metadata)})
        return base64.b64encode(buffer.getvalue()).decode()


def buckets(named: Named, most_bytes: int = BUCKET_BYTES) -> Iterator[DigestedBucket]:
    """The tensors in buckets of at most so many bytes, or of one tensor; each holds one dtype."""
    for dtype in dict.fromkeys(tensor.dtype for _, tensor in named):
        waiting: list[tuple[str, Tensor]] = []
        size = 0
        for name, tensor in named:
            if tensor.dtype != dtype:
                continue
            if waiting and size + tensor.nbytes > most_bytes:
                yield _flatten_into_bucket(waiting)
                waiting, size = [], 0
            waiting.append((name, tensor))
            size += tensor.nbytes
        yield _flatten_into_bucket(waiting)


def _flatten_into_bucket(named: Named) -> DigestedBucket:
    metadata: list[FlattenedTensorMetadata] = []
    start = 0
    for name, tensor in named:
        end = start + tensor.nbytes
        metadata.append(
            FlattenedTensorMetadata(name, tensor.shape, tensor.dtype, start, end, end - start)
        )
        start = end
    data = torch.empty(start, dtype=torch.uint8, device=named[0][1].device)
    for meta, (_, tensor) in zip(metadata, named, strict=True):
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        data[meta.start_idx : meta.end_idx] = flat
    return DigestedBucket(data, metadata)
