"""`SandboxPool`: few sandboxes for many episodes."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import psutil

from agentrl.errors import SandboxError
from agentrl.sandboxes.admission import Turnstile, host_place
from agentrl.sandboxes.base import Sandbox
from agentrl.sandboxes.choose import make_sandbox
from agentrl.sandboxes.errors import SandboxClosed, SandboxesBusy, SandboxUnavailable
from agentrl.sandboxes.types import Limits, SandboxOptions

_NUM_STARTS: Final = 4
"""More starts at once are no faster: an engine does some ten a second."""


@dataclass(slots=True)
class _Sum:
    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds


class SandboxPool:
    """At most `size` sandboxes of one kind, reset and used again.

    Those in use also share `SandboxOptions.per_host` with the other pools and processes.
    Works from several event loops. Waiting for a free one is no part of any command's time; who
    waits too long gets an error of the infrastructure, never a result.
    """

    def __init__(
        self,
        options: SandboxOptions | None = None,
        *,
        size: int | None = None,
        deadline_s: float = Sandbox.deadline_s,
    ) -> None:
        """Start nothing yet.

        Args:
            options: what each sandbox is.
            size: most sandboxes at once; default: as many as the machine's memory holds.
            deadline_s: a host that gives no sign of life for so long is given up.
        """
        self.options = options or SandboxOptions()
        self.size = size or default_size(self.options.limits)
        self._deadline_s = deadline_s
        self._admission = Turnstile(self.size)
        self._starts = Turnstile(_NUM_STARTS)
        self._lock = threading.Lock()
        self._idle: list[Sandbox] = []
        self._closed = False
        self.isolation: tuple[str, ...] = ()
        """The backend of its sandboxes and what they hold; known after the first start."""
        self._sums = {name: _Sum() for name in ("queue", "start", "reset", "exec")}

    def acquire(
        self, *, queue_timeout_s: float | None = None
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox as it is after its start, for the time of an `async with` block.

        Raises:
            SandboxesBusy: None was free within `queue_timeout_s`.
            SandboxError: It did not start.
        """
        return self._lease_sandbox(queue_timeout_s)

    @asynccontextmanager
    async def _lease_sandbox(self, queue_timeout_s: float | None) -> AsyncGenerator[Sandbox]:
        async with AsyncExitStack() as places:
            await self._wait_for_places(places, queue_timeout_s)
            sandbox = await self._take_idle_or_start_sandbox()
            try:
                yield sandbox
            finally:
                await asyncio.shield(self._reset_and_return_sandbox(sandbox))

    async def _wait_for_places(self, places: AsyncExitStack, timeout_s: float | None) -> None:
        """A place of this pool, then one of the machine; it returns holding both."""
        began = time.monotonic()
        wanted, remedy = f"{self.size} sandboxes", "make the pool"
        try:
            async with asyncio.timeout(timeout_s):
                await places.enter_async_context(self._admission.place())
                if self.options.backend != "fake":
                    most = self.options.per_host or max(
                        self.size, default_size(self.options.limits)
                    )
                    wanted, remedy = f"{most} places of this machine for sandboxes", "make per_host"
                    await places.enter_async_context(host_place(most))
        except TimeoutError:
            raise SandboxesBusy(
                f"none of the {wanted} was free within {timeout_s} s; {remedy} larger or the "
                "episodes fewer"
            ) from None
        except OSError as error:
            raise SandboxUnavailable(f"the sandboxes in use cannot be counted: {error}") from error
        self._add_to_timing_sum("queue", time.monotonic() - began)

    async def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        await asyncio.gather(*(sandbox.close() for sandbox in idle))

    @property
    def metrics(self) -> Mapping[str, float]:
        """Seconds and counts so far: `queue_s`, `num_queue` and the same of start, reset, exec."""
        found: dict[str, float] = {}
        for name, total in self._sums.items():
            found[f"{name}_s"] = total.seconds
            found[f"num_{name}"] = total.count
        return found

    async def _take_idle_or_start_sandbox(self) -> Sandbox:
        while True:
            with self._lock:
                if self._closed:
                    raise SandboxClosed("the pool of sandboxes is closed")
                sandbox = self._idle.pop() if self._idle else None
            if sandbox is None:
                return await self._start_new_sandbox()
            if await sandbox.alive():
                return sandbox
            await sandbox.close()

    async def _start_new_sandbox(self) -> Sandbox:
        async with self._starts.place():
            began = time.monotonic()
            sandbox = await asyncio.to_thread(make_sandbox, self.options)
            sandbox.deadline_s = self._deadline_s
            await sandbox.start()
            self._add_to_timing_sum("start", time.monotonic() - began)
            self.isolation = (sandbox.name, *sorted(sandbox.capabilities))
            return sandbox

    async def _reset_and_return_sandbox(self, sandbox: Sandbox) -> None:
        self._add_to_timing_sum("exec", sandbox.exec_s, sandbox.num_execs)
        sandbox.exec_s, sandbox.num_execs = 0.0, 0
        began = time.monotonic()
        fit = False
        try:
            if not self._closed:
                await sandbox.reset()
                self._add_to_timing_sum("reset", time.monotonic() - began)
                fit = True
        except SandboxError:
            pass  # it is closed, and the next episode gets a new one
        with self._lock:
            fit = fit and not self._closed
            if fit:
                self._idle.append(sandbox)
        if not fit:
            await sandbox.close()

    def _add_to_timing_sum(self, name: str, seconds: float, count: int = 1) -> None:
        with self._lock:
            self._sums[name].add(seconds, count)


class SandboxPools:
    """The pools of a process: one for each kind of sandbox that is asked for."""

    def __init__(self, *, deadline_s: float = Sandbox.deadline_s) -> None:
        """Start nothing yet; `deadline_s` as for `SandboxPool`."""
        self._lock = threading.Lock()
        self._deadline_s = deadline_s
        self._pools: dict[str, SandboxPool] = {}

    def pool(self, options: SandboxOptions) -> SandboxPool:
        """The pool of these options."""
        with self._lock:
            pool = SandboxPool(options, deadline_s=self._deadline_s)
            return self._pools.setdefault(options.model_dump_json(), pool)

    def acquire(
        self, options: SandboxOptions, *, queue_timeout_s: float | None = None
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox of these options, as `SandboxPool.acquire`."""
        return self.pool(options).acquire(queue_timeout_s=queue_timeout_s)

    @property
    def isolation(self) -> list[tuple[str, ...]]:
        """What isolated the commands so far: backends and what each held."""
        with self._lock:
            return sorted({p.isolation for p in self._pools.values() if p.isolation})

    async def close(self) -> None:
        """Close all of them."""
        with self._lock:
            pools, self._pools = self._pools, {}
        await asyncio.gather(*(pool.close() for pool in pools.values()))


def default_size(limits: Limits) -> int:
    """How many sandboxes a machine holds: by three quarters of its memory, and 4 on each core."""
    by_memory = psutil.virtual_memory().total * 3 // 4 // limits.memory_bytes
    return max(1, min(by_memory, 4 * len(os.sched_getaffinity(0))))
