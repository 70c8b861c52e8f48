"""SIGUSR1 asks a run who waits for whom; it says so on standard error and goes on."""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress

from agentrl.schedule import Wait


@contextmanager
def tell_waits_on_signal(waits: Callable[[], Sequence[Wait]]) -> Generator[None]:
    """Answer the signal inside; where somebody else handles it, or off the main thread, nothing."""
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    )
    if not is_ours:
        yield
        return

    def tell(*_: object) -> None:
        # Not by print: the signal may have come in the middle of one.
        with suppress(OSError):
            os.write(2, format_waits(waits(), time.monotonic()).encode())

    signal.signal(signal.SIGUSR1, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def format_waits(waits: Sequence[Wait], now: float) -> str:
    """A line for each, the longest first; `now` is on the clock of an event loop."""
    lines = [f"  {wait}, {now - wait.since:.1f} s" for wait in waits]
    return "\n".join(["agentrl: who waits for whom:", *(lines or ["  nobody"]), ""])
