"""`fake`: a sandbox in memory, for tests of what uses sandboxes."""

import asyncio
import pickle
import posixpath
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import ClassVar

from agentrl.sandboxes.base import Sandbox
from agentrl.sandboxes.errors import FileAccessError, FileTooLarge
from agentrl.sandboxes.types import Command, Entry, ExecResult

Answer = Callable[["FakeSandbox", Command], ExecResult]


def silent(sandbox: "FakeSandbox", command: Command) -> ExecResult:
    """Every command succeeds and prints nothing."""
    return ExecResult(status="exited", exit_code=0)


class FakeSandbox(Sandbox):
    """Files are a dict, commands are recorded and answered by `answer`."""

    name = "fake"
    answer: ClassVar[Answer] = silent

    async def _start_backend(self) -> None:
        self.files: dict[str, bytes] = {}
        self.commands: list[Command] = []

    def _destroy_backend(self) -> None:
        pass

    async def _run_command_in_backend(self, command: Command) -> ExecResult:
        self.commands.append(command)
        return type(self).answer(self, command)

    async def kill_leftovers(self) -> None:
        """There are no processes."""

    async def read_file(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """The bytes that were written."""
        self._require_running()
        data = self.files.get(self._make_file_key(path))
        if data is None:
            raise FileAccessError(f"{path}: there is no such file")
        if len(data) > (max_bytes or self.limits.read_bytes):
            raise FileTooLarge(f"{path}: it has {len(data)} bytes")
        return data

    async def write_file(
        self, path: str, data: bytes, *, mode: int | None = None, in_place: bool = False
    ) -> None:
        """Keep the bytes."""
        self._require_running()
        self.files[self._make_file_key(path)] = data

    async def read_files(self, paths: Collection[str]) -> dict[str, bytes]:
        """The bytes of those that were written."""
        keys = {path: self._make_file_key(path) for path in paths}
        return {path: self.files[key] for path, key in keys.items() if key in self.files}

    async def write_files(self, contents: Mapping[str, bytes]) -> None:
        """Keep the bytes."""
        self.files.update({self._make_file_key(path): data for path, data in contents.items()})

    async def list_dir(self, path: str = "") -> tuple[Entry, ...]:
        """The files right in a folder."""
        folder = self._make_file_key(path)
        return tuple(
            Entry(name=posixpath.basename(name), kind="file", size=len(data))
            for name, data in sorted(self.files.items())
            if posixpath.dirname(name) == folder
        )

    async def _save_workspace_to_file(self, place: Path) -> None:
        await asyncio.to_thread(place.write_bytes, pickle.dumps(self.files))

    async def _load_workspace_from_file(self, place: Path | None) -> None:
        self.files = {}
        if place is not None:
            self.files = pickle.loads(await asyncio.to_thread(place.read_bytes))

    def _make_file_key(self, path: str) -> str:
        return posixpath.normpath(self._resolve_path(path))
