"""The directory of one run.

runs/<name>/  config.toml  events.jsonl  metrics.jsonl  turns.jsonl  episodes/  checkpoints/
runs/last     a link to the run that was started or resumed last

One process at a time writes to it. The lock is the kernel's (`flock`): it ends with the process,
however that ends, so a lock file that is left behind means nothing; its text tells who holds it.
"""

import fcntl
import itertools
import json
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from agentrl.config.nearest import nearest
from agentrl.errors import ConfigError
from agentrl.run_dir.writing import write_text_atomic, writing

_LAST = "last"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_NO_RUN = frozenset({"run.lock", "events.jsonl", "engine"})
"""What a run that could not begin leaves."""


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
            holder = _describe_lock_holder(path)
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


def _describe_lock_holder(path: Path) -> str:
    try:
        data = json.loads(path.read_text())
        return f"process {int(data['pid'])} on {data['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


class RunDirectory:
    """A run's files; made by `create` or `open`, and a context manager that gives the lock back."""

    def __init__(self, path: Path, lock: RunLock | None) -> None:
        self.path = path
        self.name = path.name
        self.config = path / "config.toml"
        """The effective configuration with origins."""
        self.layers = path / "layers.jsonl"
        """What the run was started with and what each resume changed, one JSON object per line."""
        self.events = path / "events.jsonl"
        """What happened, one JSON object per line."""
        self.metrics = path / "metrics.jsonl"
        """One JSON object per step."""
        self.turns = path / "turns.jsonl"
        """The turns of episodes that nobody has trained on, one JSON object per line."""
        self.status = path / "status.json"
        """Who waits for whom; only while a process runs it."""
        self.episodes = path / "episodes"
        """The folder of episode files."""
        self.checkpoints = path / "checkpoints"
        """The folder of checkpoints."""
        self._lock = lock
        self._last_before: Path | None = None

    @classmethod
    def create(cls, root: Path, name: str | None = None, *, prefix: str = "run") -> Self:
        """Make the directory of a new run and lock it.

        Args:
            root: the folder of all runs, made if needed.
            name: the run's name; without one it is `prefix` and the next free number.
            prefix: the first part of an automatic name, such as the environment's name.

        Raises:
            ConfigError: the name is no file name, the directory holds a run or is in use, or it
                cannot be written.
        """
        root = root.absolute()  # whatever becomes of the working directory
        try:
            root.mkdir(parents=True, exist_ok=True)
            if name is None:
                return cls._create_numbered_run_folder(root, prefix)
            (root / _check_run_name(name)).mkdir(exist_ok=True)
            return cls._lock_empty_run_folder(root / name)
        except OSError as error:
            raise ConfigError(
                f"{root}: a run directory cannot be written there ({error.strerror});"
                " choose another --runs-dir"
            ) from error

    @classmethod
    def open(cls, root: Path, run: str, *, write: bool = False) -> Self:
        """Open an existing run, given by its name, its path or the word `last`.

        Args:
            root: the folder of all runs.
            run: name, path or `last`.
            write: lock it, to go on with the run.

        Raises:
            ConfigError: there is no such run, or `write` and it is in use.
        """
        path = _resolve_run_folder(root, run).absolute()
        if not write:
            return cls(path, None)
        return cls(path, RunLock(path / "run.lock"))

    @classmethod
    def _create_numbered_run_folder(cls, root: Path, prefix: str) -> Self:
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", prefix).strip("-") or "run"
        for number in itertools.count(1):
            path = root / f"{stem}-{number:03}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return cls._lock_empty_run_folder(path)
        raise AssertionError("the numbers do not end")

    @classmethod
    def _lock_empty_run_folder(cls, path: Path) -> Self:
        lock = RunLock(path / "run.lock")
        try:
            _check_folder_holds_no_run(path)
        except BaseException:
            lock.release()
            raise
        return cls(path, lock)

    def write_config(self, text: str) -> None:
        """Store the effective configuration; from now on this is the `last` run."""
        last = self.path.parent / _LAST
        self._last_before = last.readlink() if last.is_symlink() else None
        write_text_atomic(self.config, text)
        self.mark_last()

    def mark_last(self) -> None:
        """From now on this is the `last` run."""
        _point_last_link_at_run(self.path)

    def forget(self) -> None:
        """Undo `write_config`, for a run that could not begin: its name is free again.

        What happened stays in `events.jsonl`.
        """
        self.config.unlink(missing_ok=True)
        self.layers.unlink(missing_ok=True)
        (self.path.parent / _LAST).unlink(missing_ok=True)
        if self._last_before is not None:
            _point_last_link_at_run(self.path.parent / self._last_before)

    def close(self) -> None:
        """Give the lock back; doing it twice is fine."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def check_new_run(root: Path, name: str | None) -> None:
    """Check that a new run could be made, with this name if there is one; nothing is written.

    Raises:
        ConfigError: the name is no file name, its directory holds a run, or the folder of all runs
            cannot be written.
    """
    path = root.absolute() / _check_run_name(name) if name is not None else root.absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(
            f"{root}: a run directory cannot be written there ({existing} is no folder that can be"
            " written); choose another --runs-dir"
        )
    if name is not None and path.is_dir():
        _check_folder_holds_no_run(path)


def _check_folder_holds_no_run(path: Path) -> None:
    if held := sorted({p.name for p in path.iterdir()} - _NO_RUN):
        raise ConfigError(
            f"{path}: already holds a run ({held[0]}); choose another --name,"
            f" or continue it with --resume {path.name}"
        )


def run_names(root: Path) -> list[str]:
    """The names of the runs in a folder."""
    if not root.is_dir():
        return []
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.is_symlink())


def _check_run_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name == _LAST:
        raise ConfigError(
            f'--name: got {name[:120]!r}, expected letters, digits, ".", "_" and "-",'
            f' at most 100 of them, not "{_LAST}"'
        )
    return name


def _resolve_run_folder(root: Path, run: str) -> Path:
    if run == _LAST:
        path = _follow_symlink_to_sibling(root / _LAST)
        if not path.is_dir() or path.name == _LAST:
            raise ConfigError(f"{root}: has no last run yet; start one or name one")
        return path
    if Path(run).name == run and (root / run).is_dir() and run not in (".", ".."):
        return root / run
    path = _follow_symlink_to_sibling(Path(run))
    if any((path / file).exists() for file in ("config.toml", "run.lock")):
        return path
    raise ConfigError(f"{run}: no such run in {root}, {nearest(run, run_names(root))}")


def _follow_symlink_to_sibling(path: Path) -> Path:
    """Where a link points, in the same folder; so that a run has its own name."""
    return path.parent / path.readlink().name if path.is_symlink() else path


def _point_last_link_at_run(path: Path) -> None:
    temporary = path.parent / f".{_LAST}-{os.getpid()}.tmp"
    with writing(path.parent / _LAST):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(path.name)
        temporary.replace(path.parent / _LAST)
