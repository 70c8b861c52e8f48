"""Who waits for whom in a run: SIGUSR1 asks it, and `status.json` has it while the run is there."""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import orjson

from agentrl.sandboxes.owner import Owner
from agentrl.schedule import Wait

BEAT_S: Final = 1.0
"""How often the status is written."""
_MOST_WAITS: Final = 50


@contextmanager
def keep_status(
    path: Path, step: Callable[[], int], waits: Callable[[], Sequence[Wait]]
) -> Generator[None]:
    """Write every second where the run is, from a thread of its own; the file goes with the run."""
    is_over = threading.Event()

    def write_until_over() -> None:
        while not is_over.is_set():
            # Another thread changes what is listed: then there is a next time. So for a full disk.
            with suppress(OSError, RuntimeError):
                _write_status(path, step(), waits())
            is_over.wait(BEAT_S)

    thread = threading.Thread(target=write_until_over, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        path.unlink(missing_ok=True)


def _write_status(path: Path, step: int, waits: Sequence[Wait]) -> None:
    now = time.monotonic()
    longest = [
        {"who": wait.who, "owner": wait.owner, "seconds": round(now - wait.since, 1)}
        for wait in waits[:_MOST_WAITS]
    ]
    status = {"process": str(Owner.this()), "time": time.time(), "step": step}
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(orjson.dumps({**status, "waits": longest, "num_waits": len(waits)}))
    temporary.replace(path)


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
    return [wait_line(wait.who, wait.owner, now - wait.since) for wait in waits]


def wait_line(who: str, owner: str, seconds: float) -> str:
    """How a wait is told."""
    return f"{who} waits for {owner}, {seconds:.1f} s"
