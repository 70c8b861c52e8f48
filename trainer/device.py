"""Devices: the only place that knows their kinds; everything else is given a `torch.device`."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch is typed in part only.

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import distributed

from agentrl.errors import ConfigError, RunError

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of a device; of a CPU, those of the machine and of this process."""

    total_bytes: int
    free_bytes: int
    used_bytes: int
    """What this process holds."""


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """`cpu`, `auto` (an accelerator if there is one) or the kind of an accelerator that is there.

    Raises ConfigError if there is none of that kind, or too few for the rank.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    if name == "cpu" or (name == "auto" and found is None):
        return CPU
    if found is None or name not in ("auto", found.type):
        there = "cpu" if found is None else f"cpu and {found.type}"
        raise ConfigError(f"trainer.device: got {name!r}, but this machine has {there}; use auto")
    if local_rank >= torch.accelerator.device_count():
        raise ConfigError(
            f"trainer.ranks: rank {local_rank} has no device, since this machine has "
            f"{torch.accelerator.device_count()}; lower it"
        )
    return torch.device(found.type, local_rank)


def backend(device: torch.device) -> str:
    """The communication backends for tensors on the device, and beside it for those in memory."""
    if device.type == "cpu":
        return "gloo"
    return f"cpu:gloo,{device.type}:{distributed.get_default_backend_for_device(device)}"


def use(device: torch.device) -> None:
    """Make it the current device of this process."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)


def synchronize(device: torch.device) -> None:
    """Wait for what the device has to do; a CPU has nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def memory(device: torch.device) -> Memory:
    """What the device has and what this process holds of it."""
    if device.type == "cpu":
        machine = psutil.virtual_memory()
        used = psutil.Process().memory_info().rss
        return Memory(total_bytes=machine.total, free_bytes=machine.available, used_bytes=used)
    free, total = torch.accelerator.get_memory_info(device)
    used = torch.accelerator.memory_allocated(device)
    return Memory(total_bytes=total, free_bytes=free, used_bytes=used)


def give_back(device: torch.device) -> None:
    """Let others have the memory that torch keeps for later; a CPU's is the C library's."""
    if device.type != "cpu":
        torch.accelerator.empty_cache()


def cap_memory(device: torch.device, limit_bytes: int) -> None:
    """Let this process take no more of an accelerator than so many bytes."""
    # Not in torch.accelerator; each kind of accelerator has a module of its name.
    module: Any = getattr(torch, device.type)
    share = min(1.0, limit_bytes / memory(device).total_bytes)
    module.set_per_process_memory_fraction(share, device)


class OutOfMemory(RunError):
    """A process could not get memory."""


@contextmanager
def memory_errors(token_budget: int) -> Generator[None]:
    """Say what to do when memory runs out in a pass; no weight has changed then."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = next(iter(str(error).splitlines()), "no memory is left")
        raise OutOfMemory(
            f"the trainer ran out of memory ({reason}); resume from the last checkpoint with a "
            f"trainer.token_budget below {token_budget} or with trainer.activation_checkpointing: "
            "agentrl train --dry-run --device-memory says what fits"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """True for what Python and torch raise when memory is used up, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # The CPU's allocator has no type of its own.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def count_accelerators() -> tuple[int, int]:
    """How many this machine has, and the bytes of the smallest; none: 0 and 0."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return 0, 0
    devices = [torch.device(found.type, i) for i in range(torch.accelerator.device_count())]
    return len(devices), min(memory(device).total_bytes for device in devices)
