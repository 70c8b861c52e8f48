"""One process at a time writes to a run directory.

The lock is the kernel's (`flock`): it ends with the process, however that ends, so a lock file that
is left behind means nothing. The file's text only tells who holds it.
"""

import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path

from agentrl.errors import ConfigError


class RunLock:
    """A held lock; `release` (or the end of the process) gives it back."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            ConfigError: a live process holds it, or the file cannot be written.
        """
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(path)
            os.close(self._fd)
            raise ConfigError(
                f"{path.parent}: the run directory is in use by {holder};"
                " choose another --name or stop that process"
            ) from error
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        with suppress(OSError):  # a full disk: the lock holds, though nobody can read whose it is
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)

    def release(self) -> None:
        """Give the lock back; doing it twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _holder(path: Path) -> str:
    try:
        data = json.loads(path.read_text())
        return f"process {int(data['pid'])} on {data['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
