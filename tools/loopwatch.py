"""Names the function that kept the event loop standing still."""

import asyncio
import itertools
import logging
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

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
        before = _Look((), 0.0, time.monotonic(), queued_s, _read_queued_s(own))
        while not self._done.wait(pace_s):
            stack = _list_frames_of_thread(self._loop_thread)
            cpu_s, time_s = time.clock_gettime(clock), time.monotonic()
            now = _Look(stack, cpu_s, time_s, self._read_loop_queued_s(), _read_queued_s(own))
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
    queued_s: float
    """How long the thread has been ready without a processor."""
    unseen_s: float
    """How long the thread that looks has."""

    def lasting(self, before: "_Look", *, longer_than_s: float) -> FrameType | None:
        """The innermost call that has lasted since `before`, unless it is the loop's own.

        A loop that is late without one has much to do or gets no processor: nobody is to blame.
        """
        if self.time_s - before.time_s - (self.queued_s - before.queued_s) <= longer_than_s:
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
