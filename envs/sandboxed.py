"""`SandboxEnv`: an environment whose episodes each have a sandbox."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from pydantic import Field

from agentrl.config import Config as BaseConfig
from agentrl.envs.toolenv import ToolEnv
from agentrl.sandboxes import Sandbox, SandboxOptions
from agentrl.tools.sandboxed import UsesSandbox
from agentrl.types import Task

_QUEUE_S = 3600.0


class SandboxConfig(BaseConfig):
    """The parameters of an environment with a sandbox."""

    sandbox: SandboxOptions = Field(default_factory=SandboxOptions)


class SandboxEnv(UsesSandbox, ToolEnv):
    """`self.sandbox` is there from `setup` to the teardown; a subclass's `setup` awaits this one's.

    Its tools are what it inherits from `agentrl.tools.sandboxed`. The sandboxes of a process are
    shared by its episodes; each finds one as new.
    """

    Config = SandboxConfig
    config: SandboxConfig
    _lent: Sandbox | None = None

    @asynccontextmanager
    async def admission(self, task: Task) -> AsyncGenerator[object]:
        """Wait for a free sandbox."""
        async with self._lease_sandbox(task) as sandbox:
            self._lent = sandbox
            yield sandbox
        self._lent = None

    async def setup(self) -> None:
        """Take the sandbox; without the agent loop, wait for one here."""
        sandbox = self._lent
        if sandbox is None:
            sandbox = await self.resources.enter_async_context(self._lease_sandbox(self.task))
        self.use_sandbox(sandbox)

    def sandbox_for(self, task: Task) -> SandboxOptions:
        """The sandbox that a task needs; default: the same for all."""
        return self.config.sandbox

    def _lease_sandbox(self, task: Task) -> AbstractAsyncContextManager[Sandbox]:
        options = self.sandbox_for(task)
        return self.services.sandboxes.acquire(options, queue_timeout_s=_QUEUE_S)
