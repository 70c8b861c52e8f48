"""Memory that processes of one host share, such that an SGLang server can map it too.

torch's `file_system` strategy: a file in /dev/shm with a count of its users, which a helper process
removes when all of them are gone, also by force. The other strategy passes descriptors, which only
relatives can.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch are not typed)

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import EngineError
from agentrl.weights.plan import Bucket, Handle

_FOLDER = Path("/dev/shm")
_STORAGE: Any = torch.UntypedStorage  # what it can do with files is not typed


@dataclass(frozen=True, slots=True)
class Shared:
    """Some bytes, and how other processes find them; gone when nobody holds them."""

    data: Tensor
    """uint8, flat."""
    handle: Handle


def share(num_bytes: int) -> Shared:
    """Bytes that are really there, so that no writer is killed for want of them.

    Raises:
        EngineError: there is no room.
    """
    _start_shared_memory_helper()
    storage = _STORAGE._new_using_filename_cpu(num_bytes)
    manager, name, size = storage._share_filename_cpu_()
    path = _FOLDER / name.decode().lstrip("/")
    try:
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        raise EngineError(
            f"{_FOLDER} has no room for {num_bytes:,} bytes of weights ({error.strerror}); make it "
            "larger (in a container: --shm-size), or publish another way"
        ) from error
    return Shared(_view_storage_as_byte_tensor(storage), Handle(manager, name, size))


def attach(handle: Handle) -> Tensor:
    """The bytes of another process."""
    return _view_storage_as_byte_tensor(
        _STORAGE._new_shared_filename_cpu(handle.manager, handle.name, handle.num_bytes)
    )


def view(data: Tensor, bucket: Bucket, receiver: int, name: str, dtype: torch.dtype) -> Tensor:
    """A receiver's tensor inside a bucket's bytes."""
    place = bucket.places[receiver, name]
    size = torch.Size(place.shape).numel() * dtype.itemsize
    return data[place.offset : place.offset + size].view(dtype).view(place.shape)


def _view_storage_as_byte_tensor(storage: Any) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


@cache
def _start_shared_memory_helper() -> None:
    """Start it with nothing of ours open: it may outlive us by as long as a server."""
    ours = os.dup(2)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        _STORAGE._new_using_filename_cpu(1)._share_filename_cpu_()
    finally:
        os.dup2(ours, 2)
        os.close(ours)
