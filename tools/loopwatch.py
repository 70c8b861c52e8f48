"""Names the function that kept the event loop standing still."""

import asyncio
import logging
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Self

_log = logging.getLogger(__name__)


class LoopWatch:
    """While entered, logs a warning each time the running loop stood still for `limit_s`.

    A second thread looks at a clock that the loop keeps setting; when it is late, the innermost
    frame of the loop's thread is the one that holds it. Code that holds the interpreter too is
    found when it lets go.
    """

    def __init__(self, limit_s: float = 1.0):
        self.limit_s = limit_s
        self.num_stalls = 0
        """Stalls so far."""
        self._beat_s = 0.0
        self._done = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._loop_thread = 0
        self._watcher: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        self._loop_thread = threading.get_ident()
        self._beat(asyncio.get_running_loop())
        self._watcher = threading.Thread(target=self._watch, name="agentrl-loopwatch", daemon=True)
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

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat_s = time.monotonic()
        self._timer = loop.call_later(self.limit_s / 5, self._beat, loop)

    def _watch(self) -> None:
        reported_s = 0.0
        while not self._done.wait(self.limit_s / 4):
            beat_s = self._beat_s
            late_s = time.monotonic() - beat_s
            if late_s > self.limit_s and beat_s != reported_s:
                reported_s = beat_s
                self.num_stalls += 1
                frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]  # there is no public way
                _log.warning(
                    "the event loop has stood still for %.1f s in %s; make that code async, or "
                    "run it in a thread or a process",
                    late_s,
                    _name(frame),
                )


def _name(frame: FrameType | None) -> str:
    if frame is None:
        return "a thread that is gone"
    code = frame.f_code
    return f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
