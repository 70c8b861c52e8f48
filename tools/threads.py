"""One thread per episode for sync code, and the count of those that never came back.

    loop:    call(f) ---> queue                          future <--- result
    thread:               takes f, runs it, hands the result over, takes the next ...

A call that outlives its timeout leaves the thread *busy*. After a grace time it is *abandoned*: the
loop goes on without it, and the thread closes what is its own when (and if) the call returns.
"""

import asyncio
import contextvars
import functools
import queue
import threading
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from agentrl.errors import BreakerTripped

P = ParamSpec("P")
T = TypeVar("T")


class AbandonedThreads:
    """Counts the abandoned threads of a run and stops the run when they are too many."""

    def __init__(self, limit: int = 16):
        self.limit = limit
        self._lock = threading.Lock()
        self._names: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Threads that are abandoned and have not come back."""
        with self._lock:
            return self._names.total()

    def abandon(self, name: str) -> None:
        """Count one; `name` is what it was doing.

        Raises:
            BreakerTripped: More than `limit` are abandoned.
        """
        with self._lock:
            self._names[name] += 1
            total = self._names.total()
            table = ", ".join(f"{name} ({n})" for name, n in self._names.most_common(5))
        if total > self.limit:
            raise BreakerTripped(
                f"{total} threads hang in tools that outlived their timeout, expected at most "
                f"{self.limit}: {table}; make them async or @tool(isolated=True)"
            )

    def come_back(self, name: str) -> None:
        """Count one less."""
        with self._lock:
            self._names[name] -= 1


class EpisodeThread:
    """A daemon thread that runs sync calls one after the other."""

    def __init__(self, name: str):
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_calls = 0
        self._abandoned = False
        self._on_return: Callable[[], None] | None = None
        # A daemon, so that a hanging tool cannot keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run_queued_calls, name=name, daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        """As `threading.get_ident()` reads inside."""
        return self._thread.ident

    @property
    def busy(self) -> bool:
        """True while a call runs; after a timeout that means: still hangs."""
        return self._num_calls > 0

    async def call(
        self, function: Callable[P, T], timeout_s: float, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run the function here and wait for it at most `timeout_s`.

        Raises:
            TimeoutError: The call goes on alone; its result is dropped.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        work = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
        with self._lock:
            self._num_calls += 1
            self._jobs.put(functools.partial(_run_work_into_future, loop, future, work))
        async with asyncio.timeout(timeout_s):
            return await future

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait for the running call; False if it is still running after `timeout_s`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        pause_s = 0.001
        while self.busy and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, 0.05)
        return not self.busy

    def abandon(self, on_return: Callable[[], None]) -> bool:
        """Leave the running call alone; the thread runs `on_return` after it and ends.

        Returns False, and does nothing, if the call has come back in the meantime.
        """
        with self._lock:
            if not self.busy:
                return False
            self._abandoned = True
            self._on_return = on_return
        return True

    def stop(self) -> None:
        """Let the thread end after the calls that it has."""
        self._jobs.put(None)

    def _run_queued_calls(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._lock:
                self._num_calls -= 1
                if self._abandoned:
                    break
        if self._on_return is not None:
            self._on_return()


def _run_work_into_future(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T]", work: Callable[[], T]
) -> None:
    """Run the work and give its result or its exception to the loop, which may be gone."""
    try:
        result = work()
    except BaseException as error:
        settle = functools.partial(future.set_exception, error)
    else:
        settle = functools.partial(future.set_result, result)
    try:
        loop.call_soon_threadsafe(_settle_pending_future, future, settle)
    except RuntimeError:
        # The loop closed while the call ran: nobody waits for the result any more.
        if not loop.is_closed():
            raise


def _settle_pending_future(future: "asyncio.Future[T]", settle: Callable[[], None]) -> None:
    if not future.done():
        settle()
