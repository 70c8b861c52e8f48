"""`Sandbox`: what every backend offers, over the few things that each does its own way."""

import asyncio
import itertools
import posixpath
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from agentrl.sandboxes import files
from agentrl.sandboxes.errors import (
    FileAccessError,
    SandboxClosed,
    SandboxStartError,
    UnsupportedLimit,
)
from agentrl.sandboxes.exit import forget, keep_until_exit
from agentrl.sandboxes.process import Process, Sink, run
from agentrl.sandboxes.session import COMMANDS, Session, SessionKind
from agentrl.sandboxes.types import (
    WORKSPACE,
    Capability,
    Command,
    Entry,
    ExecResult,
    SandboxOptions,
)

_ENTER: Final = 'cd -- "$1" || exit 126; shift; exec "$@"'
_NO_PATH: Final = re.compile("[\0\ud800-\udfff]")
_MAX_ARGUMENT: Final = 128 * 1024 - 1
"""The kernel takes no longer one."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The workspace as it was; it lives as long as the sandbox that made it."""

    backend: str
    place: Path


class Sandbox(ABC):
    """A place where untrusted commands run.

    Use it with `async with`, or call `start` and `close`. All paths are paths in the sandbox;
    relative ones begin at `workspace`. A backend defines `_start_backend`, `_destroy_backend`,
    `kill_leftovers` and `_start_process_in_backend`, or `_run_command_in_backend` if it keeps no
    processes; the rest builds on these.
    """

    name: ClassVar[str]
    scratch_folders: ClassVar[tuple[str, ...]] = ("/tmp",)
    """Folders beside the workspace that a reset empties."""
    deadline_s: float = 30.0
    """Until a host that gives no sign of life is given up; a run sets it: `fault.deadline_s`."""

    def __init__(self, options: SandboxOptions | None = None) -> None:
        self.options = options or SandboxOptions()
        self.limits = self.options.limits
        self.workspace = WORKSPACE
        self.capabilities: frozenset[Capability] = frozenset()
        """What is really held here; known after `start`."""
        self.mounts: dict[str, str] = {name: f"/mnt/{name}" for name in self.options.mounts}
        """Where the folders of `SandboxOptions.mounts` are inside, by name."""
        self._state = "new"
        self._sessions: list[Session] = []
        self._snapshots = itertools.count()
        self._folder: Path | None = None
        self.num_execs = 0
        self.exec_s = 0.0
        """Of all commands so far, those of file access included."""

    # What a backend defines.

    @abstractmethod
    async def _start_backend(self) -> None:
        """Come up and set `capabilities`; after an error `_destroy_backend` is called."""

    @abstractmethod
    def _destroy_backend(self) -> None:
        """End everything and leave nothing; also after a `_start_backend` that failed half way.

        It runs in a thread, or when the process ends, so it must not need an event loop.
        """

    async def _run_command_in_backend(self, command: Command) -> ExecResult:
        """Run a command; SandboxDied if it cannot be known what came of it."""

        def opened(sink: Sink) -> Awaitable[Process]:
            return self._start_process_in_backend(command, sink)

        return await run(opened, command, self._was_killed_for_memory)

    async def _start_process_in_backend(self, command: Command, sink: Sink) -> Process:
        raise UnsupportedLimit(f"the backend {self.name} keeps no processes, so it has no sessions")

    @abstractmethod
    async def kill_leftovers(self) -> None:
        """End what commands have left running; sessions may end with it."""

    # Life.

    async def start(self) -> Self:
        """Come up.

        Raises:
            SandboxUnavailable: The backend does not work here.
            SandboxStartError: This sandbox did not come up.
            UnsupportedLimit: A required capability is missing.
        """
        if self._state != "new":
            raise SandboxStartError(f"this sandbox is {self._state}; make a new one")
        self._state = "running"
        keep_until_exit(self, self.destroy)
        done = False
        try:
            await self._start_backend()
            wanted = {*self.options.require, *["mounts"] * bool(self.mounts)}
            missing = sorted(wanted - self.capabilities)
            if missing:
                raise UnsupportedLimit(
                    f"the backend {self.name} does not hold {', '.join(missing)} on this machine, "
                    f"only {', '.join(sorted(self.capabilities)) or 'nothing'}"
                )
            for name, place in self.mounts.items():
                if not (await self._run_script('[ -r "$1" ] && [ -x "$1" ]', place)).ok:
                    raise SandboxStartError(
                        f"the sandbox cannot read the folder {self.options.mounts[name]} of its "
                        "mounts; it must exist, and every user must be allowed to read it"
                    )
            done = True
        finally:
            if not done:
                await self.close()
        return self

    async def close(self) -> None:
        """End everything in it; a second call does nothing, and a cancelled one goes on."""
        if self._state == "running":
            self._state = "closed"
            await asyncio.shield(self._close_sessions_and_backend())

    def destroy(self) -> None:
        """As `close`, where no event loop can run any more: at the end of the process."""
        if self._state == "running":
            self._state = "closed"
            self._destroy_backend()

    async def _close_sessions_and_backend(self) -> None:
        try:
            await self._close_open_sessions()
        finally:
            await asyncio.to_thread(self._destroy_backend)
            forget(self)
            if self._folder is not None:
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def __aenter__(self) -> Self:
        return self if self._state == "running" else await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def alive(self) -> bool:
        """True if commands run in it."""
        if self._state != "running":
            return False
        try:
            return (await self._run_script("exit 0", timeout_s=10.0)).ok
        except Exception:
            return False

    # Commands.

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        max_output: int | None = None,
        kill_leftovers: bool = False,
    ) -> ExecResult:
        """Run a program, or a bash line.

        Its non-zero exit, timeout or lack of memory is a result. It runs in a process session of
        its own; nothing of it goes on after a timeout, and nothing at all with `kill_leftovers`.

        Args:
            cmd: a program and its arguments; a str is for bash.
            cwd: where it starts; default: the workspace.
            env: more environment variables.
            stdin: its input.
            timeout_s: seconds; clamped to the limits.
            max_output: bytes kept of each stream; default: the limit.
            kill_leftovers: end the children that it leaves.

        Raises:
            SandboxDied: The sandbox ended, so there is no result.
            SandboxClosed: It was closed or never started.
        """
        argv = ("bash", "-c", cmd) if isinstance(cmd, str) else tuple(cmd)
        limits = self.limits
        command = Command(
            argv=argv,
            cwd=cwd,
            env=dict(env or {}),
            stdin=stdin,
            timeout_s=limits.timeout(timeout_s),
            # Who asks for more reads it himself: a report of tests has to come whole.
            max_output=max_output or limits.output_bytes,
        )
        result = await self._complete_and_run_command(command)
        if kill_leftovers:
            await self.kill_leftovers()
        return result

    async def session(self, kind: SessionKind = "bash") -> Session:
        """A shell or interpreter that keeps its state; it starts with its first call."""
        command = self._wrap_command_with_env_vars_and_cd(Command(argv=COMMANDS[kind], cwd=""))

        async def open_(sink: Sink) -> Process:
            self._require_running()
            return await self._start_process_in_backend(command, sink)

        session = Session(kind, open_, self.limits)
        self._sessions.append(session)
        return session

    async def _complete_and_run_command(self, command: Command) -> ExecResult:
        self._require_running()
        command = self._wrap_command_with_env_vars_and_cd(command)
        wrong = _explain_impossible_command(command.argv)
        if wrong:
            data = f"{wrong}\n".encode()
            return ExecResult(status="exited", exit_code=126, stderr=data, stderr_total=len(data))
        result = await self._run_command_in_backend(command)
        self.num_execs += 1
        self.exec_s += result.duration_s
        return result

    async def _was_killed_for_memory(self, code: int) -> bool:
        """True if a process was killed for memory since this was last asked."""
        return False

    def _wrap_command_with_env_vars_and_cd(self, command: Command) -> Command:
        """With the environment, and with a shell that goes to the working folder first."""
        argv = tuple(part.encode(errors="replace").decode() for part in command.argv)
        home = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
        return Command(
            argv=("/bin/sh", "-c", _ENTER, "sh", self._resolve_path(command.cwd), *argv),
            cwd=self.workspace,
            env={**home, "TERM": "dumb", **self.options.env, **command.env},
            stdin=command.stdin,
            timeout_s=command.timeout_s,
            max_output=command.max_output,
        )

    def _resolve_path(self, path: str) -> str:
        if _NO_PATH.search(path):
            raise FileAccessError(f"{path!a} is no path: it has a character that no path can have")
        return posixpath.join(self.workspace, path)

    def _require_running(self) -> None:
        if self._state != "running":
            raise SandboxClosed(f"the sandbox is {self._state}, not running")

    # Files.

    async def read_file(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """The content of a regular file.

        Raises:
            FileAccessError: There is no such file, or it is no regular file.
            FileTooLarge: It is longer than `max_bytes`, or than the limit.
        """
        limit = min(max_bytes or self.limits.read_bytes, self.limits.read_bytes)
        result = await self._run_script(
            files.READ, self._resolve_path(path), str(limit), max_output=limit + 4096
        )
        return files.require_ok(result, path).stdout

    async def write_file(
        self, path: str, data: bytes, *, mode: int | None = None, in_place: bool = False
    ) -> None:
        """Write a file, all or nothing; its folders are made.

        Args:
            path: the file.
            data: all of it.
            mode: its permissions; None keeps what it had.
            in_place: write the file that a link leads to, under all its names, as an editor does;
                else a new file takes the link's or the name's place.
        """
        wanted = "keep" if mode is None else f"{mode:o}"
        place = "follow" if in_place else "replace"
        result = await self._run_script(
            files.WRITE, self._resolve_path(path), wanted, place, stdin=data
        )
        files.require_ok(result, path)

    async def read_files(self, paths: Collection[str]) -> dict[str, bytes]:
        """The contents of those of many regular files that are there, by one command."""
        names = {self._resolve_path(path): path for path in paths}
        listed = b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in names)
        result = await self._run_script(
            files.PACK_NAMED,
            stdin=listed,
            max_output=self._most_archive_bytes,
            timeout_s=files.TREE_TIMEOUT_S,
        )
        found = files.unpack_files(files.require_ok(result, "reading files").stdout)
        return {names[name]: data for name, data in found.items() if name in names}

    async def write_files(self, contents: Mapping[str, bytes]) -> None:
        """Write many files by one command; their folders are made."""
        data = files.pack_files({self._resolve_path(path): text for path, text in contents.items()})
        if contents:
            await self._unpack_tar_in_sandbox(data, "/")

    async def list_dir(self, path: str = "") -> tuple[Entry, ...]:
        """The names in a folder, sorted.

        Raises:
            FileAccessError: There is no such folder, or it holds too much.
        """
        result = await self._run_script(files.LIST, self._resolve_path(path))
        if result.stdout_truncated:
            raise FileAccessError(f"{path or '.'}: it holds more than can be listed")
        return files.entries(files.require_ok(result, path or ".").stdout)

    async def upload(self, source: str | Path, target: str = "") -> None:
        """Copy a folder's content, or a file, of this machine into a folder of the sandbox."""
        data = await asyncio.to_thread(files.pack, Path(source))
        await self._unpack_tar_in_sandbox(data, target)

    async def download(self, source: str, target: str | Path) -> None:
        """Copy a folder's content out of the sandbox into a folder of this machine.

        Raises:
            PathEscape: Something in it is no plain file, folder or inner link: nothing of that
                member is written.
        """
        data = await self._pack_folder_as_tar(source)
        await asyncio.to_thread(files.unpack, data, Path(target))

    async def _pack_folder_as_tar(self, source: str) -> bytes:
        result = await self._run_script(
            files.PACK,
            self._resolve_path(source),
            max_output=self._most_archive_bytes,
            timeout_s=files.TREE_TIMEOUT_S,
        )
        return files.require_ok(result, source or ".").stdout

    @property
    def _most_archive_bytes(self) -> int:
        """An archive pads every file to blocks, so it is larger than what it holds."""
        return 2 * self.limits.disk_bytes + 1024 * self.limits.files

    async def _unpack_tar_in_sandbox(self, data: bytes, target: str) -> None:
        result = await self._run_script(
            files.UNPACK, self._resolve_path(target), stdin=data, timeout_s=files.TREE_TIMEOUT_S
        )
        files.require_ok(result, target or ".")

    async def _run_script(
        self,
        script: str,
        *arguments: str,
        stdin: bytes = b"",
        max_output: int = 1 << 24,
        timeout_s: float = files.TIMEOUT_S,
    ) -> ExecResult:
        argv = ("/bin/sh", "-c", script, "sh", *arguments)
        return await self._complete_and_run_command(
            Command(argv=argv, cwd="", stdin=stdin, timeout_s=timeout_s, max_output=max_output)
        )

    # The state of the workspace.

    async def snapshot(self) -> Snapshot:
        """Keep the workspace as it is now; processes are not part of it."""
        self._require_running()
        if self._folder is None:
            self._folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="agentrl-"))
        place = self._folder / str(next(self._snapshots))
        await self._save_workspace_to_file(place)
        return Snapshot(self.name, place)

    async def restore(self, snapshot: Snapshot) -> None:
        """End what runs and make the workspace what it was; also another sandbox's of its kind."""
        self._require_running()
        if snapshot.backend != self.name or not snapshot.place.exists():
            raise ValueError(
                f"the snapshot of a {snapshot.backend} sandbox is gone or does not fit {self.name}"
            )
        await self._close_sessions_and_kill_rest()
        await self._load_workspace_from_file(snapshot.place)

    async def reset(self) -> None:
        """End what runs and make the workspace what it was after `start`."""
        self._require_running()
        await self._close_sessions_and_kill_rest()
        await self._load_workspace_from_file(None)

    async def fork(self) -> "Sandbox":
        """A new sandbox, started, whose workspace begins as this one's is."""
        other = type(self)(self.options)
        other.deadline_s = self.deadline_s
        await other.start()
        done = False
        try:
            await other.restore(await self.snapshot())
            done = True
        finally:
            if not done:
                await other.close()
        return other

    async def _close_sessions_and_kill_rest(self) -> None:
        await self._close_open_sessions()
        await self.kill_leftovers()

    async def _close_open_sessions(self) -> None:
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            await session.close()

    async def _save_workspace_to_file(self, place: Path) -> None:
        data = await self._pack_folder_as_tar("")
        await asyncio.to_thread(place.write_bytes, data)

    async def _load_workspace_from_file(self, place: Path | None) -> None:
        """Fill the workspace from what `_save_workspace_to_file` made; None: from the base."""
        result = await self._run_script(files.WIPE, self.workspace, *self.scratch_folders)
        files.require_ok(result, "emptying the workspace")
        if place is not None:
            await self._unpack_tar_in_sandbox(await asyncio.to_thread(place.read_bytes), "")
        elif self.options.base is not None:
            await self.upload(self.options.base)


def _explain_impossible_command(argv: Sequence[str]) -> str:
    """Why no kernel would run this; empty if one may."""
    if any("\0" in part for part in argv):
        return "the command has a NUL character"
    longest = max(len(part.encode()) for part in argv)
    if longest > _MAX_ARGUMENT:
        return (
            f"the command has an argument of {longest} bytes, at most {_MAX_ARGUMENT} are possible;"
            " write it to a file and run that"
        )
    return ""
