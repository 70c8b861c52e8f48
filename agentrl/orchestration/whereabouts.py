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
        lines = ["agentrl: who waits for whom:", *(describe_waits(waits()) or ["nobody"])]
        with suppress(OSError):
            os.write(2, ("\n  ".join(lines) + "\n").encode())

    signal.signal(signal.SIGUSR1, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def describe_waits(waits: Sequence[Wait]) -> list[str]:
    """A line for each, with the seconds that it lasts; they began on the clock of an event loop."""
    now = time.monotonic()
    return [f"{wait.who} waits for {wait.owner}, {now - wait.since:.1f} s" for wait in waits]
