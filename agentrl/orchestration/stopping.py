"""`Stopping`: how a run is asked to stop, by Ctrl-C or by SIGTERM.

    first signal   between steps: at once
                   in a step:     the step may end; what is sampled CANCEL_S later is given up,
                                  and after GRACE_S so is an update
    second signal  at once

What is given up leaves the weights as the last step left them, so that they can be kept. A signal
that the process was started with as ignored stays ignored, and one that has a handler of the
user's goes on to have it.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, Self, TypeVar

from agentrl.terminated import Terminated, terminate

T = TypeVar("T")

GRACE_S: Final = 30.0
CANCEL_S: Final = 25.0
_OURS: Final = (signal.SIG_DFL, signal.default_int_handler, terminate)


class GivenUp(Exception):
    """The step has been given up; the weights are those of the step before."""


class Stopping:
    """Handles the signals of one run while it is entered; does nothing off the main thread."""

    def __init__(self) -> None:
        self.number = 0
        """The signal that came, if one did."""
        self.is_urgent = False
        """True once a second signal came."""
        self._is_stepping = False
        self._is_writing = False
        self._is_over = False
        self._deadline = 0.0
        self._giveable: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._before: dict[int, Any] = {}
        self._terminals = [fd for fd in (1, 2) if os.isatty(fd)]

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) in _OURS:
                    self._before[number] = signal.signal(number, self._handle_stop_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def step(self) -> Generator[None]:
        """A step, up to its checkpoint; a signal that came is raised at its end.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            Terminated: SIGTERM or SIGHUP.
        """
        self._is_stepping = True
        try:
            with suppress(GivenUp):
                yield
        finally:
            self._is_stepping = False
        if self.number:
            raise _make_stop_exception(self.number)

    @contextmanager
    def writing(self) -> Generator[None]:
        """A checkpoint, which may take longer than the time that a step has."""
        self._is_writing = True
        try:
            yield
        finally:
            self._is_writing = False

    async def or_give_up(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns.

        Raises:
            GivenUp: the run is to stop, and the work would take too long.
        """
        task = asyncio.ensure_future(work)
        self._giveable = asyncio.get_running_loop(), task
        try:
            if self.number:
                self._cancel_giveable_work_near_deadline()
            return await task
        except asyncio.CancelledError:
            if self.number and task.cancelled() and self.left_s < GRACE_S - CANCEL_S:
                raise GivenUp from None
            raise
        finally:
            self._giveable = None

    def check_time(self, seconds: float) -> None:
        """Raise GivenUp if the run is to stop before something of this length would be done."""
        if self.number and self.left_s < seconds:
            raise GivenUp

    @property
    def left_s(self) -> float:
        """How long a run that is to stop may still take."""
        return self._deadline - time.monotonic()

    def _handle_stop_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_urgent = bool(self.number) and not self._is_over
        is_first, self.number = not self.number, self.number or number
        if number == signal.SIGHUP:
            # The terminal is gone: writing to it would be an error.
            null = os.open(os.devnull, os.O_WRONLY)
            for fd in self._terminals:
                os.dup2(null, fd)
            os.close(null)
        if not is_first or not self._is_stepping:
            raise _make_stop_exception(self.number)
        self._deadline = time.monotonic() + GRACE_S
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        # Not by print: the signal may have come in the middle of one.
        text = f"\nagentrl: {name}: stopping after this step, or in {GRACE_S:g} s; again: at once\n"
        with suppress(OSError):
            os.write(2, text.encode())
        self._cancel_giveable_work_near_deadline()
        threading.Thread(target=self._signal_again_after_grace, args=(number,), daemon=True).start()

    def _cancel_giveable_work_near_deadline(self) -> None:
        """Cancel what can be given up when its time is over."""
        if self._giveable is not None:
            loop, task = self._giveable
            left = max(0.0, self.left_s - (GRACE_S - CANCEL_S))
            loop.call_soon_threadsafe(lambda: loop.call_later(left, task.cancel))

    def _signal_again_after_grace(self, number: int) -> None:
        """Interrupt what no event loop can, when the whole time is over."""
        time.sleep(GRACE_S)
        if self._is_stepping and not self._is_writing:
            self._is_over = True
            os.kill(os.getpid(), number)


def _make_stop_exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
