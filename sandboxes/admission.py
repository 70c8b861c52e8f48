"""Who may use a sandbox now: places in a process, and places of a machine.

The places of a machine are files; who holds the lock of one (`flock`) has the place. The kernel
ends a lock with its process, however that ends. Whoever wants a place takes the lock `line` first
and keeps it until there is one, so that a process that is always busy cannot keep others out:

    this process's episodes ──▶ _first ──▶ line ──▶ 0, 1, 2, ...
                       other processes ─────┘
"""

import asyncio
import fcntl
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from agentrl.sandboxes import workspace

_LOOK_S: Final = 0.02


class Turnstile:
    """A semaphore for several event loops, first come first served."""

    def __init__(self, places: int) -> None:
        self._lock = threading.Lock()
        self._free = places
        self._waiting: deque[Future[None]] = deque()

    async def enter(self, timeout_s: float | None) -> None:
        """Take a place; TimeoutError if there is none in time."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            place: Future[None] = Future()
            self._waiting.append(place)
        done = False
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wrap_future(place)
            done = True
        finally:
            # A place that was given while this gave up goes to the next.
            if not done and not place.cancel() and not place.cancelled():
                self.leave()

    def leave(self) -> None:
        """Give the place to who waits longest."""
        with self._lock:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(None)
                    return
            self._free += 1

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """A place for the time of a `with` block."""
        await self.enter(None)
        try:
            yield
        finally:
            self.leave()


_first: Final = Turnstile(1)
"""Only one of this process's tasks looks at the files; the others wait behind it, in order."""


@asynccontextmanager
async def host_place(most: int) -> AsyncGenerator[None]:
    """One of `most` places of this machine, of all processes of this user.

    Who asks with fewer has the first ones only, so the others take them last.
    """
    folder = workspace.private_folder(workspace.root_folder() / "places")
    async with _first.place():
        line = await _lock_first_unlocked_file([folder / "line"])
        try:
            place = await _lock_first_unlocked_file(
                [folder / str(number) for number in reversed(range(most))]
            )
        finally:
            _unlock_and_close_file(line)
    try:
        yield
    finally:
        _unlock_and_close_file(place)


async def _lock_first_unlocked_file(files: Iterable[Path]) -> int:
    """A descriptor of the first of the files that is free, locked; as soon as one is."""
    while True:
        for file in files:
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                os.close(fd)
        await asyncio.sleep(_LOOK_S)


def _unlock_and_close_file(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)  # also if a child that was forked has the descriptor too
    os.close(fd)
