"""Who a sandbox belongs to: what is left of owners that are gone may be removed."""

import functools
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, named so that no later process can be taken for it."""

    host: str
    boot: str
    """The machine's boot and the process namespace."""
    pid: int
    started: int
    """In clock ticks since the boot."""

    @classmethod
    def this(cls) -> "Owner":
        """The running process."""
        return cls(
            socket.gethostname(),
            _identify_boot_and_pid_namespace(),
            os.getpid(),
            _read_start_time(os.getpid()) or 0,
        )

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """What `str` made, or None."""
        try:
            host, boot, pid, started = text.rsplit("_", 3)
            return cls(host, boot, int(pid), int(started))
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.host}_{self.boot}_{self.pid}_{self.started}"

    @property
    def is_gone(self) -> bool:
        """True if it surely ran here and does not any more; another machine's cannot be known."""
        here, there = _identify_boot_and_pid_namespace(), self.boot
        if self.host != socket.gethostname():
            return False
        if here.partition("-")[0] != there.partition("-")[0]:
            return True
        return here == there and _read_start_time(self.pid) != self.started


@functools.cache
def _identify_boot_and_pid_namespace() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"


def _read_start_time(pid: int) -> int | None:
    """When a process started; None if there is none, or only its exit status is left."""
    try:
        # The name, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
