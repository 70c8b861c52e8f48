"""Where the workers of a group are: in this process, in processes of this machine.

A third executor, actors of a Ray cluster, stands in `agentrl.orchestration.ray_workers`.
"""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

from agentrl.workers.calls import pickled_call, value_of
from agentrl.workers.channel import Channel
from agentrl.workers.spawner import Spawner

T = TypeVar("T")

_START_S: Final = 120.0
_LONGEST_S: Final = 1e6
"""A call as such has no limit: the exchanges inside it have."""
_MAX_RESULT_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place in its group; it is held until something else is."""

    number: int
    size: int
    host: str = "127.0.0.1"
    """The address by which the other workers reach it."""
    device: int = 0
    """Which of the accelerators that it sees is its own."""


@dataclass(frozen=True)
class WorkerCall:
    """A function for a worker, which gives it what it holds before the arguments."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    keeps: bool = False
    """Hold the result instead of returning it."""

    @cached_property
    def pickled(self) -> bytes:
        """For a worker of another process; raises ConfigError if it cannot travel."""
        return pickled_call(self.fn, self.args, keeps=self.keeps)


class Workers(Protocol):
    """So many workers; each answers one call at a time."""

    def __len__(self) -> int: ...

    async def exchange(self, number: int, call: WorkerCall) -> Any:
        """What one worker's call returns, or raises.

        Raises:
            WorkerDied: it is gone.
        """
        ...

    def describe(self, number: int) -> str:
        """Which process one is, and where, once it has been called."""
        ...

    def close(self) -> None:
        """End them with all that they started; a second call does nothing."""
        ...


class Executor(Protocol):
    """Starts workers."""

    def start(self, size: int) -> Workers:
        """So many, each of which holds its `Seat`."""
        ...


class Inline:
    """Workers in this process, for what needs no memory and no exchange of its own."""

    def start(self, size: int) -> "InlineWorkers":
        """So many objects."""
        return InlineWorkers([[Seat(i, size, device=i)] for i in range(size)])


@dataclass
class InlineWorkers:
    """Each is what it holds."""

    held: list[list[Any]]

    def __len__(self) -> int:
        return len(self.held)

    async def exchange(self, number: int, call: WorkerCall) -> Any:
        """The call, here and now."""
        value = call.fn(*self.held[number], *call.args)
        if call.keeps:
            self.held[number][:], value = [value], None
        return value

    def describe(self, number: int) -> str:
        """All are here."""
        return f"process {os.getpid()}"

    def close(self) -> None:
        """Let go of what they hold."""
        self.held.clear()


@dataclass(frozen=True, slots=True)
class Processes:
    """Workers in processes of this machine."""

    preload: Sequence[str] = ()
    """Modules that all need: imported once, before the processes are forked."""
    deadline_s: float = 30.0
    """One that was stopped for so long is killed."""

    def start(self, size: int) -> "ProcessWorkers":
        """So many processes."""
        spawner = Spawner(
            memory_bytes=None,
            max_result_bytes=_MAX_RESULT_BYTES,
            preload=self.preload,
            deadline_s=self.deadline_s,
        )
        return ProcessWorkers(spawner, [spawner.spawn() for _ in range(size)])


class ProcessWorkers:
    """They end with the process that started them, however that ends."""

    def __init__(self, spawner: Spawner, channels: Sequence[Channel]) -> None:
        self._spawner, self._channels = spawner, channels

    def __len__(self) -> int:
        return len(self._channels)

    async def exchange(self, number: int, call: WorkerCall) -> Any:
        """Send it and wait for the reply."""
        channel = self._channels[number]
        if not channel.ready:
            await channel.start(_START_S)
            seat = WorkerCall(_sit_down, (number, len(self)), keeps=True)
            value_of(await channel.exchange(seat.pickled, _START_S), seat.fn)
        return value_of(await channel.exchange(call.pickled, _LONGEST_S), call.fn)

    def describe(self, number: int) -> str:
        """Its process."""
        return f"process {self._channels[number].pid}"

    def close(self) -> None:
        """End the processes and wait for them."""
        self._spawner.close()
        for channel in self._channels:
            channel.close()


def _sit_down(number: int, size: int) -> Seat:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the run has a step to end, and a checkpoint
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return Seat(number, size, device=number)
