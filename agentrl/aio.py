"""What asyncio lacks: `Runner` runs coroutines from plain code, `within` waits, but not for ever.

A `Runner` works wherever that code is; a notebook's cells are plain code in a running loop:

plain code          -> on the calling thread, as `asyncio.Runner` does it
in a running loop   -> on a thread of the runner's own, for which the caller waits

`within` begins the coroutine first. Most tools and hooks end without having waited for anything,
and then no clock was set; a coroutine that waits goes on under `timeout_beside_pauses`, whose time
stands still in the pauses of a `PauseWatch`. `LoopWatch` names the function that kept the loop
standing still.
"""

import asyncio
import itertools
import logging
import sys
import threading
import time
import types
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
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


class PauseWatch:
    """How long something was paused; may be asked by any thread."""

    def __init__(self) -> None:
        self._state: tuple[float, float | None] = 0.0, None
        """Seconds of the pauses that are over, and when that of now began; written as one."""

    @property
    def total_s(self) -> float:
        """Seconds of all pauses, that of now included."""
        before_s, since_s = self._state
        return before_s if since_s is None else before_s + time.monotonic() - since_s

    def pause(self) -> None:
        """A pause begins, unless there is one."""
        before_s, since_s = self._state
        self._state = before_s, time.monotonic() if since_s is None else since_s

    def resume(self) -> None:
        """The pause is over, if there is one."""
        self._state = self.total_s, None


_LOOK_S = 0.05
"""A limit that ends in a pause is looked at again so much later."""
_CLOCK_S = 0.001
"""What is left of a limit when its timer comes early."""


@asynccontextmanager
async def timeout_beside_pauses(
    seconds: float | None, paused_s: Callable[[], float]
) -> AsyncGenerator[asyncio.Timeout]:
    """As `asyncio.timeout`, for a time that stands still while `paused_s` grows."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as clock:
        if seconds is None:
            yield clock
            return
        end_s = loop.time() + seconds - paused_s()
        timer = loop.call_later(seconds, lambda: look())

        def look() -> None:
            nonlocal timer
            left_s = end_s + paused_s() - loop.time()
            if left_s > _CLOCK_S:
                timer = loop.call_later(max(left_s, _LOOK_S), look)
            else:
                clock.reschedule(loop.time())

        try:
            yield clock
        finally:
            timer.cancel()


class OutOfTime(Exception):
    """The time of `within` is over; a TimeoutError of the coroutine's own stays one."""


def _never_paused() -> float:
    return 0.0


async def within(
    seconds: float | None,
    work: Coroutine[Any, Any, T],
    paused_s: Callable[[], float] = _never_paused,
) -> T:
    """What `work` returns; None is no limit. Raises OutOfTime after a longer one was cancelled.

    What `paused_s` grows by meanwhile does not count.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    clock: asyncio.Timeout | None = None
    try:
        async with timeout_beside_pauses(seconds, paused_s) as clock:
            return await _await_begun_coroutine(work, waits_for)
    except TimeoutError:
        if clock is not None and clock.expired():
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


_log = logging.getLogger(__name__)


class LoopWatch:
    """While entered, logs a warning each time the running loop stood still for `limit_s`.

    A second thread looks at a clock that the loop keeps setting; when it is late, the innermost
    call that lasts from one look to the next is the one that holds it. Code that holds the
    interpreter too is found when it lets go, by the processor time that it used. Time that the
    thread spent waiting for a processor does not count: on a busy machine nobody is to blame.
    """

    def __init__(self, limit_s: float = 1.0):
        self.limit_s = limit_s
        self.num_stalls = 0
        """Stalls so far."""
        self._beat_s = 0.0
        self._done = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._loop_thread = 0
        self._schedule = Path()
        self._watcher: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        self._loop_thread = threading.get_ident()
        self._schedule = _find_schedstat()
        self._note_loop_beat(asyncio.get_running_loop())
        self._watcher = threading.Thread(
            target=self._watch_loop_for_stalls, name="agentrl-loopwatch", daemon=True
        )
        self._watcher.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.join()

    def _note_loop_beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat_s = time.monotonic()
        self._timer = loop.call_later(self.limit_s / 5, self._note_loop_beat, loop)

    def _watch_loop_for_stalls(self) -> None:
        pace_s = self.limit_s / 4
        clock = time.pthread_getcpuclockid(self._loop_thread)
        own = _find_schedstat()
        reported_s, seen_s, queued_s = 0.0, self._beat_s, self._read_loop_queued_s()
        before = _Look((), 0.0, time.monotonic(), False, queued_s, _read_queued_s(own))
        while not self._done.wait(pace_s):
            stack = _list_frames_of_thread(self._loop_thread)
            cpu_s, time_s = time.clock_gettime(clock), time.monotonic()
            is_ready = _is_ready(self._schedule.with_name("stat"))
            waits = (self._read_loop_queued_s(), _read_queued_s(own))
            now = _Look(stack, cpu_s, time_s, is_ready, *waits)
            beat_s = self._beat_s
            if beat_s != seen_s:
                seen_s, queued_s = beat_s, self._read_loop_queued_s()
            late_s = now.time_s - beat_s - (now.queued_s - queued_s)
            if late_s > self.limit_s and beat_s != reported_s:
                holder = now.lasting(before, longer_than_s=pace_s / 8) or now.computing(
                    before, longer_than_s=2 * pace_s
                )
                if holder is not None:
                    reported_s = beat_s
                    self._report_stalled_loop(late_s, holder)
            before = now

    def _read_loop_queued_s(self) -> float:
        """How long the loop's thread has been ready without a processor."""
        return _read_queued_s(self._schedule)

    def _report_stalled_loop(self, late_s: float, holder: FrameType) -> None:
        self.num_stalls += 1
        code = holder.f_code
        _log.warning(
            "the event loop has stood still for %.1f s in %s (%s:%d); make that code async, or "
            "run it in a thread or a process",
            late_s,
            code.co_qualname,
            code.co_filename,
            holder.f_lineno,
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """What the loop's thread was doing at one moment; the outermost frame first."""

    stack: tuple[FrameType, ...]
    cpu_s: float
    """Processor time that the thread has used."""
    time_s: float
    is_ready: bool
    """It has a processor or waits for one; it does not sleep."""
    queued_s: float
    """How long the thread has been ready without a processor; a wait counts when it has ended."""
    unseen_s: float
    """How long the thread that looks has."""

    def lasting(self, before: "_Look", *, longer_than_s: float) -> FrameType | None:
        """The innermost call that has lasted since `before`, unless it is the loop's own.

        A loop that is late without one has much to do or gets no processor: nobody is to blame.
        """
        held_s = self.time_s - before.time_s - (self.queued_s - before.queued_s)
        if self.is_ready:  # perhaps in a wait for a processor that has not been counted yet
            held_s = min(held_s, self.cpu_s - before.cpu_s)
        if held_s <= longer_than_s:
            return None
        pairs = zip(self.stack, before.stack, strict=False)
        both = [pair[0] for pair in itertools.takewhile(lambda pair: pair[0] is pair[1], pairs)]
        return both[-1] if both and not _is_event_loop_frame(both[-1]) else None

    def computing(self, before: "_Look", *, longer_than_s: float) -> FrameType | None:
        """The innermost call, if the thread computed for so long and let nobody look.

        While nobody looked for want of a processor, nobody was kept from it.
        """
        hidden_s = self.cpu_s - before.cpu_s - (self.unseen_s - before.unseen_s)
        guilty = (
            hidden_s > longer_than_s and self.stack and not _is_event_loop_frame(self.stack[-1])
        )
        return self.stack[-1] if guilty else None


def _find_schedstat() -> Path:
    """Where Linux says how the running thread was scheduled."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")


def _read_queued_s(schedule: Path) -> float:
    """How long a thread has been ready without a processor; 0 where Linux does not say."""
    try:
        return int(schedule.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _is_ready(stat: Path) -> bool:
    """True if a thread has a processor or waits for one; False where Linux does not say."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "R"
    except (OSError, IndexError):
        return False


def _is_event_loop_frame(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in ("asyncio", "selectors", "threading", "runpy")


def _list_frames_of_thread(thread: int) -> tuple[FrameType, ...]:
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]  # there is no public way
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return tuple(reversed(frames))
