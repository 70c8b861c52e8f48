"""`WorkerPool`: run a function in a process that can be killed."""

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self, TypeVar

from agentrl.errors import ConfigError
from agentrl.workers.calls import (
    QueueTimeout,
    WorkerDied,
    WorkerTimeout,
    name_of,
    pickled_call,
    value_of,
)
from agentrl.workers.channel import Channel
from agentrl.workers.spawner import Spawner

T = TypeVar("T")

_START_S: Final = 60.0
_REAP_S: Final = 10.0


class WorkerPool:
    """At most `size` warm worker processes, started when needed.

    Works from several event loops and their threads. Time limits are of running alone; waiting
    for a free worker has its own, optional limit. A call that is cancelled kills its worker.
    """

    def __init__(
        self,
        size: int,
        name: str,
        *,
        memory_bytes: int | None = None,
        max_result_bytes: int = 8 << 20,
        deadline_s: float = 30.0,
        preload: Sequence[str] = ("agentrl.types",),
    ) -> None:
        """Start nothing yet.

        Args:
            size: most calls that run at once.
            name: what messages call the pool.
            memory_bytes: address space of one worker (RLIMIT_AS); above it comes MemoryError.
            max_result_bytes: a larger result is a CallFailed.
            deadline_s: a process that was stopped for so long in a call is killed.
            preload: light modules without threads that every worker has from its start.
        """
        if size < 1:
            raise ConfigError(f"pool {name} has size {size}; give it at least 1 worker")
        self.size = size
        self.name = name
        self._spawner = Spawner(
            memory_bytes=memory_bytes,
            max_result_bytes=max_result_bytes,
            preload=preload,
            deadline_s=deadline_s,
        )
        self._lock = threading.Lock()
        self._idle: list[Channel] = []
        self._busy: set[Channel] = set()
        self._waiting: deque[Future[Channel]] = deque()
        self._closed = False
        self._finalizer = weakref.finalize(self, _end_workers, self._spawner, self._idle)

    async def call(
        self,
        fn: Callable[..., T],
        *args: object,
        timeout_s: float,
        queue_timeout_s: float | None = None,
    ) -> T:
        """`fn(*args)` in a worker.

        Raises:
            WorkerTimeout: it ran longer than `timeout_s`; its process is killed and reaped.
            WorkerDied: its process ended by itself or by a signal.
            QueueTimeout: no worker was free within `queue_timeout_s`.
            CallFailed: its exception or result cannot be handed over.
            ConfigError: the function or its arguments cannot be pickled.
            Exception: what `fn` raised, with its traceback as a note.
        """
        request = pickled_call(fn, args)
        channel = await self._wait_for_free_worker(queue_timeout_s)
        alive = False
        try:
            if not channel.ready:
                await channel.start(_START_S)
            reply = await channel.exchange(request, timeout_s)
            alive = True
        except TimeoutError:
            self._spawner.kill(channel)
            # Bounded, since the caller is told of the timeout anyway.
            with contextlib.suppress(WorkerDied, TimeoutError):
                while True:
                    await channel.exchange(None, _REAP_S)
            if channel.ready:
                reason = f"ran longer than {timeout_s:g} s; its process was killed"
                raise WorkerTimeout(f"{name_of(fn)} {reason}") from None
            raise WorkerDied(
                f"a worker of pool {self.name} did not start within {_START_S:g} s"
            ) from None
        except WorkerDied as error:
            closed = f"; pool {self.name} was closed" if self._closed else ""
            raise WorkerDied(f"{name_of(fn)} did not return: {error}{closed}") from None
        finally:
            self._return_worker_to_pool(channel, alive=alive)
        return value_of(reply, fn)

    def close(self) -> None:
        """End all workers and wait for them; running and waiting calls raise WorkerDied."""
        with self._lock:
            self._closed = True
            waiting = tuple(self._waiting)
            self._waiting.clear()
            self._finalizer()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(WorkerDied(f"pool {self.name} was closed"))

    async def aclose(self) -> None:
        """Like `close`, without holding the event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _wait_for_free_worker(self, timeout_s: float | None) -> Channel:
        found = self._take_worker_or_queue_place()
        if isinstance(found, Channel):
            return found
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(found)
        except TimeoutError:
            self._leave_worker_queue(found)
            raise QueueTimeout(
                f"none of the {self.size} workers of pool {self.name} was free within "
                f"{timeout_s} s; make the pool larger or the calls shorter"
            ) from None
        except asyncio.CancelledError:
            self._leave_worker_queue(found)
            raise

    def _take_worker_or_queue_place(self) -> "Channel | Future[Channel]":
        """A worker, or a place in the queue for one."""
        with self._lock:
            if self._closed:
                raise WorkerDied(f"pool {self.name} is closed")
            while self._idle:
                channel = self._idle.pop()
                if channel.is_fit():
                    self._busy.add(channel)
                    return channel
                self._kill_and_close_worker(channel)
            if len(self._busy) < self.size:
                return self._spawn_busy_worker()
            place: Future[Channel] = Future()
            self._waiting.append(place)
            return place

    def _return_worker_to_pool(self, channel: Channel, *, alive: bool) -> None:
        """Hand the worker, or a new one in its place, to whoever waits longest."""
        with self._lock:
            self._busy.discard(channel)
            fit = alive and channel.is_fit() and not self._closed
            if not fit:
                self._kill_and_close_worker(channel)
            while self._waiting:
                place = self._waiting.popleft()
                waits = place.set_running_or_notify_cancel()
                if waits and self._give_worker_to_waiter(place, channel if fit else None):
                    return
            if fit:
                self._idle.append(channel)

    def _give_worker_to_waiter(self, place: "Future[Channel]", channel: Channel | None) -> bool:
        """Give `channel`, or a new one, to who waits; False if there cannot be a new one."""
        try:
            channel = channel or self._spawn_busy_worker()
        except WorkerDied as error:
            place.set_exception(error)
            return False
        self._busy.add(channel)
        place.set_result(channel)
        return True

    def _spawn_busy_worker(self) -> Channel:
        try:
            channel = self._spawner.spawn()
        except OSError as error:
            raise WorkerDied(f"pool {self.name} cannot start a process: {error}") from error
        self._busy.add(channel)
        return channel

    def _kill_and_close_worker(self, channel: Channel) -> None:
        self._spawner.kill(channel)
        channel.close()

    def _leave_worker_queue(self, place: "Future[Channel]") -> None:
        """Leave the queue; a worker that was handed over meanwhile goes to the next."""
        if not place.cancel() and not place.cancelled() and place.exception() is None:
            self._return_worker_to_pool(place.result(), alive=True)


def _end_workers(spawner: Spawner, idle: list[Channel]) -> None:
    """End all workers of a pool that is closed, or that nobody has any more."""
    spawner.close()
    while idle:
        idle.pop().close()
