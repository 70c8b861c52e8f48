"""How new weights reach SGLang servers: as tensors, over a disk, or by a broadcast.

    begin ─▶ buckets ─▶ end ─▶ a sampled tensor read back ─▶ version

The version is named last, so a server never samples under it before all of it is there. The
servers are paused all the while.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and safetensors are not typed)

import asyncio
import base64
import io
import pickle
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch import multiprocessing as torch_mp

from agentrl.engine.protocol import WeightSource
from agentrl.engine.sglang.control import Control, Info
from agentrl.errors import EngineError

BUCKET_BYTES = 512 << 20
UPDATE_S = 600.0
"""How long a server may take for one bucket."""
_SAMPLED_VALUES = 4096
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_METADATA = ("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Target = tuple[Control, Info]
Named = Sequence[tuple[str, Tensor]]


class Transport(Protocol):
    """Brings weights to servers."""

    async def publish(
        self, targets: Sequence[Target], weights: WeightSource, version: int
    ) -> Sequence[EngineError | None]:
        """Send to all targets, check, name the version; for each target None or its failure.

        Raises EngineError if the weights are not those of the model; then nothing was sent.
        """
        ...

    async def aclose(self) -> None:
        """Let go of groups and files."""
        ...


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
        for part in _METADATA:
            self.save(part)  # type: ignore[attr-defined]
        self.write(pickle.STACK_GLOBAL)  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors of one dtype, one after the other in a flat tensor of bytes."""

    data: Tensor
    metadata: Sequence[FlattenedTensorMetadata]

    def packed(self, *, by_value: bool) -> str:
        """As text for `/update_weights_from_tensor`: with the bytes, or with where they are shared.

        What is shared lives as long as `data`. A GPU's memory is always shared.
        """
        content = {"flattened_tensor": self.data, "metadata": list(self.metadata)}
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, protocol=4)
        if by_value and self.data.device.type == "cpu":
            pickler.dump(content)
        else:
            # Sharing by file descriptors works between parent and child only.
            strategy: Any = torch_mp
            before = strategy.get_sharing_strategy()
            strategy.set_sharing_strategy("file_system")
            try:
                pickler.dispatch_table = ForkingPickler(io.BytesIO()).dispatch_table
                pickler.dump(content)
            finally:
                strategy.set_sharing_strategy(before)
        return base64.b64encode(buffer.getvalue()).decode()


def buckets(named: Named, most_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """The tensors in buckets of at most so many bytes, or of one tensor; each holds one dtype."""
    for dtype in dict.fromkeys(tensor.dtype for _, tensor in named):
        waiting: list[tuple[str, Tensor]] = []
        size = 0
        for name, tensor in named:
            if tensor.dtype != dtype:
                continue
            if waiting and size + tensor.nbytes > most_bytes:
                yield _bucket(waiting)
                waiting, size = [], 0
            waiting.append((name, tensor))
            size += tensor.nbytes
        yield _bucket(waiting)


def _bucket(named: Named) -> Bucket:
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
    return Bucket(data, metadata)


class Checked:
    """What all transports share: which tensors there must be, and the check of one of them.

    A server has `timeout_s` for each bucket.
    """

    def __init__(self, *, timeout_s: float = UPDATE_S) -> None:
        self._timeout_s = timeout_s
        self._shapes: Mapping[str, torch.Size] | None = None

    async def publish(
        self, targets: Sequence[Target], weights: WeightSource, version: int
    ) -> Sequence[EngineError | None]:
        """As `Transport.publish`."""
        named = self._named(weights, targets)
        failures = await self.send(targets, named)
        sampled = named[version % len(named)]

        async def confirm(target: Target, failure: EngineError | None) -> None:
            if failure is not None:
                raise failure
            await _check_arrived(target[0], *sampled)
            await target[0].set_version(version)

        return await each(zip(targets, failures, strict=True), lambda pair: confirm(*pair))

    async def send(self, targets: Sequence[Target], named: Named) -> Sequence[EngineError | None]:
        """Bring all tensors to all targets."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Nothing is held."""

    def _named(self, weights: WeightSource, targets: Sequence[Target]) -> Named:
        dtypes = {_DTYPES.get(info.dtype) for _, info in targets}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        named = [
            (name, tensor.detach() if dtype is None else tensor.detach().to(dtype))
            for name, tensor in weights.named_tensors()
        ]
        shapes = {name: tensor.shape for name, tensor in named}
        if len(shapes) != len(named) or not named:
            raise EngineError(
                f"the new weights name {len(named)} tensors by {len(shapes)} names; send every "
                "parameter once"
            )
        if self._shapes is not None and shapes != self._shapes:
            wrong = min(set(shapes.items()) ^ set(self._shapes.items()))
            raise EngineError(
                f"the new weights differ from the model's in {wrong[0]} {tuple(wrong[1])}; send "
                "every parameter, with its shape, under its Hugging Face name"
            )
        for name, tensor in named:
            if not torch.isfinite(tensor).all():
                raise EngineError(
                    f"the new weights have numbers in {name} that are not finite; the old ones stay"
                )
        self._shapes = shapes
        return named


class TensorTransport(Checked):
    """Buckets in the body of a request: shared memory on this host, else the bytes."""

    async def send(self, targets: Sequence[Target], named: Named) -> Sequence[EngineError | None]:
        """Bring all tensors to all targets."""
        made = list(buckets(named))

        async def to_one(target: Target) -> None:
            control, info = target
            by_value = urlsplit(control.url).hostname not in _LOOPBACK
            async with session(control, info):
                for i, bucket in enumerate(made):
                    # One text per rank; an empty list would end the server.
                    texts = [bucket.packed(by_value=by_value)] * info.tp_size
                    body = {
                        "serialized_named_tensors": texts,
                        "load_format": "flattened_bucket",
                        "flush_cache": i == len(made) - 1,
                    }
                    await control.send(
                        "/update_weights_from_tensor", body, timeout_s=self._timeout_s
                    )

        return await each(targets, to_one)


class DiskTransport(Checked):
    """A safetensors file that every server reads; the folder must be seen by all of them."""

    def __init__(self, root: Path | None = None, *, timeout_s: float = UPDATE_S) -> None:
        super().__init__(timeout_s=timeout_s)
        self._folder = Path(tempfile.mkdtemp(prefix="agentrl-weights-", dir=root))

    async def send(self, targets: Sequence[Target], named: Named) -> Sequence[EngineError | None]:
        """Bring all tensors to all targets."""
        tensors = {name: tensor.cpu().contiguous() for name, tensor in named}
        save_file(tensors, self._folder / "model.safetensors", metadata={"format": "pt"})
        body = {"model_path": str(self._folder), "flush_cache": True}
        path, timeout_s = "/update_weights_from_disk", self._timeout_s
        return await each(targets, lambda one: one[0].send(path, body, timeout_s=timeout_s))

    async def aclose(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def make_transport(kind: Literal["tensor", "disk", "distributed"]) -> Transport:
    """The transport of a configuration."""
    if kind == "disk":
        return DiskTransport()
    return TensorTransport()


class session:
    """An update session where the server has them, closed also after a failure."""

    def __init__(self, control: Control, info: Info) -> None:
        self._control = control if info.has_sessions else None

    async def __aenter__(self) -> None:
        if self._control is None:
            return
        try:
            await self._control.begin_update()
        except EngineError as error:
            if "already open" not in str(error):
                raise
            await self._control.end_update()  # of a trainer that died
            await self._control.begin_update()

    async def __aexit__(self, *raised: object) -> None:
        if self._control is not None:
            await self._control.end_update()


async def each(
    items: "Sequence[Any] | Iterator[Any]", call: Callable[[Any], Awaitable[None]]
) -> list[EngineError | None]:
    """Call for all at once; the EngineError of each, or None."""
    results = await asyncio.gather(*(call(item) for item in items), return_exceptions=True)
    failures: list[EngineError | None] = []
    for result in results:
        if result is not None and not isinstance(result, EngineError):
            raise result
        failures.append(result)
    return failures


async def _check_arrived(control: Control, name: str, tensor: Tensor) -> None:
    """Read some rows of a tensor back and compare them."""
    rows = max(1, _SAMPLED_VALUES // max(1, tensor[0].numel()))
    ours = tensor[:rows].float().cpu().numpy()
    theirs = np.array(await control.first_rows(name, rows), dtype=np.float32)
    tolerance = 1e-6 if tensor.dtype == torch.float32 else 1e-2
    if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=tolerance, atol=tolerance):
        raise EngineError(
            f"the server at {control.url} has other numbers in {name} than were sent; it has not "
            "taken the weights"
        )
