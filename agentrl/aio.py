"""What asyncio lacks: `Runner` runs coroutines from plain code, `within` waits, but not for ever.

A `Runner` works wherever that code is; a notebook's cells are plain code in a running loop:

plain code          -> on the calling thread, as `asyncio.Runner` does it
in a running loop   -> on a thread of the runner's own, for which the caller waits

`within` begins the coroutine first. Most tools and hooks end without having waited for anything,
and then no clock was set; a coroutine that waits goes on under `asyncio.timeout`.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class Runner:
    """Runs coroutines one after the other on one event loop, which it keeps until `close`.

    Context variables of the caller reach them. Ctrl-C, and what the handler of another signal
    raises, cancels the one that runs and is raised once it has ended; a second one at once.
    """

    def __init__(self) -> None:
        # It leaves the thread's own event loop, which may be a notebook's, as it is.
        self._runner = asyncio.Runner(loop_factory=_make_reporting_loop)
        self._thread: ThreadPoolExecutor | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result."""
        context, call = copy_context(), _Call(coroutine)
        if not in_loop():
            try:
                return self._runner.run(call.play(), context=context)
            except BaseException:
                call.end()
                raise
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="agentrl-loop")
        return call.result_of(self._thread.submit(self._runner.run, call.play(), context=context))

    def close(self) -> None:
        """End the loop and the thread; a later `run` begins others."""
        runner, self._runner = self._runner, asyncio.Runner(loop_factory=_make_reporting_loop)
        thread, self._thread = self._thread, None
        if thread is None:
            runner.close()
            return
        with thread:
            thread.submit(runner.close).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.close()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, on an event loop for it alone."""
    with Runner() as runner:
        return runner.run(coroutine)


def _make_reporting_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_report_loop_fault)
    return loop


def _report_loop_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say what went wrong in the loop, but for what was given up with the thread that uses it.

    The loop's end closes such generators in any order, so that one misses the other.
    """
    if "asyncgen" not in context:
        loop.default_exception_handler(context)


def in_loop() -> bool:
    """True if an event loop runs on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Call(Generic[T]):
    """A coroutine that can be cancelled from outside of its loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._is_interrupted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    async def play(self) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._is_interrupted:
            self._coroutine.close()
            raise asyncio.CancelledError
        return await self._coroutine

    def result_of(self, future: "Future[T]") -> T:
        """Wait for the result; what interrupts the waiting cancels the coroutine."""
        try:
            return future.result()
        except BaseException:
            if not future.done():
                self._is_interrupted = True
                if self._loop is not None and self._task is not None:
                    self._loop.call_soon_threadsafe(self._task.cancel)
                wait([future])
            raise

    def end(self) -> None:
        """Cancel the coroutine, if its loop was interrupted, and let it tidy up."""
        if self._loop is not None and self._task is not None and not self._task.done():
            self._task.cancel()
            self._loop.run_until_complete(asyncio.wait([self._task]))
            if not self._task.cancelled():
                self._task.exception()  # the interruption is raised instead


class OutOfTime(Exception):
    """The time of `within` is over; a TimeoutError of the coroutine's own stays one."""


async def within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; None is no limit. Raises OutOfTime after a longer one was cancelled."""
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            return await _await_begun_coroutine(work, waits_for)
    except TimeoutError:
        if clock.expired():
            raise OutOfTime(f"it took longer than {seconds} s") from None
        raise


@types.coroutine
def _await_begun_coroutine(
    work: Coroutine[Any, Any, T], waits_for: object
) -> Generator[object, Any, T]:
    """Await the rest of a coroutine that has been begun."""
    while True:
        try:
            answer = yield waits_for
        except BaseException as error:  # a cancellation is the coroutine's to see
            step = partial(work.throw, error)
        else:
            step = partial(work.send, answer)
        try:
            waits_for = step()
        except StopIteration as done:
            result: T = done.value
            return result
