"""`unsafe-local`: a plain child process. It contains nothing and has to be asked for by name."""

import asyncio
import logging
import shutil
import tempfile
from pathlib import Path

from agentrl.sandboxes.base import Sandbox
from agentrl.sandboxes.errors import SandboxDied
from agentrl.sandboxes.process import LocalProcess, Process, Sink
from agentrl.sandboxes.types import Command
from agentrl.sandboxes.workspace import copy_tree

_log = logging.getLogger(__name__)


class UnsafeLocalSandbox(Sandbox):
    """Commands run as this user, with this machine's files and network."""

    name = "unsafe-local"
    scratch_folders = ()  # /tmp is everybody's
    _home: Path | None = None

    async def _start_backend(self) -> None:
        _log.warning("the sandbox unsafe-local contains nothing: commands run as this user")
        self._home = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="agentrl-unsafe-"))
        self.workspace = str(self._home / "workspace")
        await asyncio.to_thread(self._make_workspace_and_copy_mounts)
        self.capabilities = frozenset({"sessions", "mounts"})
        if self.options.base is not None:
            await self.upload(self.options.base)

    def _make_workspace_and_copy_mounts(self) -> None:
        """The workspace, and copies instead of mounts: what is written there is not passed on."""
        Path(self.workspace).mkdir()
        for name, source in self.options.mounts.items():
            self.mounts[name] = f"{self.workspace}-{name}"
            copy_tree(source, Path(self.mounts[name]))

    def _destroy_backend(self) -> None:
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    async def _start_process_in_backend(self, command: Command, sink: Sink) -> Process:
        try:
            return await LocalProcess.start(command.argv, sink, cwd=self.workspace, env=command.env)
        except OSError as error:
            raise SandboxDied(f"the folder {self.workspace} is gone: {error}") from error

    async def kill_leftovers(self) -> None:
        """Nothing keeps track of what a child left behind."""
