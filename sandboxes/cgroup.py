"""Control groups, version 1 and 2: what bounds all processes of a sandbox together."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentrl.sandboxes.types import Limits

ROOT: Final = Path("/sys/fs/cgroup")
_PREFIX: Final = "agentrl-"
_PERIOD_US: Final = 100_000
_EMPTY_S: Final = 5.0
_V1: Final = ("memory", "pids", "cpu")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made on this machine."""

    version: int
    parents: tuple[Path, ...]
    """The folders in which a group is made: one per controller in version 1, one in version 2."""

    @classmethod
    def find(cls, root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> "Hierarchy | None":
        """The first place that takes a group with all of our limits, or None."""
        candidates = [cls(1, tuple(root / name for name in _V1))]
        with contextlib.suppress(OSError):
            lines = own.read_text().splitlines()
            path = next((line[3:] for line in lines if line.startswith("0::")), "/")
            # Below one's own group nothing may be limited while one is in it; beside it one may.
            places = dict.fromkeys((root, root / path.strip("/") / ".."))
            candidates += [cls(2, (place,)) for place in places]
        return next((found for found in candidates if found.works()), None)

    def works(self) -> bool:
        """Make a group, set its limits, remove it."""
        group = Group(self, f"probe-{os.getpid()}")
        try:
            group.create(Limits())
            return True
        except OSError:
            return False
        finally:
            group.remove()

    def groups(self, prefix: str) -> list[str]:
        """The names of the groups that begin with `prefix`."""
        found = {path.name for parent in self.parents for path in parent.glob(f"{_PREFIX}*")}
        names = (name.removeprefix(_PREFIX) for name in found)
        return sorted(name for name in names if name.startswith(prefix))


class Group:
    """The group of one sandbox."""

    def __init__(self, hierarchy: Hierarchy, name: str) -> None:
        self._v2 = hierarchy.version == 2
        self._folders = tuple(parent / f"{_PREFIX}{name}" for parent in hierarchy.parents)

    def create(self, limits: Limits) -> None:
        """Make it and set its limits; the error is an OSError."""
        for folder in self._folders:
            folder.mkdir(exist_ok=True)
        if self._v2:
            self._write_v2_limits(limits, self._folders[0])
        else:
            self._write_v1_limits(limits, *self._folders)

    def _write_v1_limits(self, limits: Limits, memory: Path, pids: Path, cpu: Path) -> None:
        _write_cgroup_value(memory / "memory.limit_in_bytes", limits.memory_bytes)
        swap = memory / "memory.memsw.limit_in_bytes"
        if swap.exists():
            _write_cgroup_value(swap, limits.memory_bytes)
        _write_cgroup_value(pids / "pids.max", limits.processes)
        _write_cgroup_value(cpu / "cpu.cfs_period_us", _PERIOD_US)
        _write_cgroup_value(cpu / "cpu.cfs_quota_us", int(limits.cpus * _PERIOD_US))

    def _write_v2_limits(self, limits: Limits, folder: Path) -> None:
        if not (folder / "memory.max").exists():
            _write_cgroup_value(folder.parent / "cgroup.subtree_control", "+memory +pids +cpu")
        _write_cgroup_value(folder / "memory.max", limits.memory_bytes)
        swap = folder / "memory.swap.max"
        if swap.exists():
            _write_cgroup_value(swap, 0)
        _write_cgroup_value(folder / "pids.max", limits.processes)
        _write_cgroup_value(folder / "cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}")

    @property
    def entrances(self) -> tuple[str, ...]:
        """The files that take a process into the group, when it writes 0 to them."""
        return tuple(str(folder / "cgroup.procs") for folder in self._folders)

    def oom_kills(self) -> int:
        """How many processes were killed for memory."""
        return _read_cgroup_count(
            self._folders[0] / ("memory.events" if self._v2 else "memory.oom_control"), "oom_kill"
        )

    def refused_forks(self) -> int:
        """How often the limit of processes let none begin."""
        return _read_cgroup_count(self._folders[0 if self._v2 else 1] / "pids.events", "max")

    def num_alive(self) -> int:
        """How many tasks are in it, without those that have ended and wait for init."""
        folder = self._folders[0] if self._v2 else self._folders[1]
        return len((folder / ("cgroup.threads" if self._v2 else "tasks")).read_text().split())

    def make_room(self, processes: int) -> bool:
        """Do not count tasks that have ended and wait for the machine's init; False: too many."""
        folder = self._folders[0] if self._v2 else self._folders[1]
        with contextlib.suppress(OSError, ValueError):
            # In this order: what begins between the two counts as alive.
            counted = int((folder / "pids.current").read_text())
            dead = max(0, counted - self.num_alive())
            _write_cgroup_value(folder / "pids.max", processes + min(dead, processes))
            return dead <= processes
        return True

    def kill(self) -> bool:
        """Kill all processes in it and wait for their end; False if some do not end."""
        deadline = time.monotonic() + _EMPTY_S
        while pids := self._list_process_ids_of_group():
            if time.monotonic() > deadline:
                return False
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
        return True

    def _list_process_ids_of_group(self) -> set[int]:
        found: set[int] = set()
        for folder in self._folders:
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
        return found - {0}

    def remove(self) -> bool:
        """Kill what is in it and remove it; False if something of it is left."""
        self.kill()
        deadline = time.monotonic() + _EMPTY_S
        left = [folder for folder in self._folders if folder.is_dir()]
        while left:
            # A process that just ended may still count for a moment.
            for folder in left:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            left = [folder for folder in left if folder.is_dir()]
            if left and time.monotonic() > deadline:
                return False
            if left:
                time.sleep(0.001)
        return True


def _read_cgroup_count(file: Path, wanted: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == wanted:
                return int(value)
    return 0


def _write_cgroup_value(file: Path, value: object) -> None:
    # No file may be made here: on a recorded tree a missing controller has to be seen.
    with file.open("r+") as open_file:
        open_file.write(str(value))
