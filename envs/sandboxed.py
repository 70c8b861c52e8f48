"""`SandboxEnv`: an environment whose episodes each have a sandbox."""

from pydantic import Field

from agentrl.config import Config as BaseConfig
from agentrl.envs.toolenv import ToolEnv
from agentrl.sandboxes import SandboxOptions
from agentrl.tools.sandboxed import UsesSandbox

_QUEUE_S = 840.0


class SandboxConfig(BaseConfig):
    """The parameters of an environment with a sandbox."""

    sandbox: SandboxOptions = Field(default_factory=SandboxOptions)


class SandboxEnv(UsesSandbox, ToolEnv):
    """`self.sandbox` is there from `setup` to the teardown; a subclass's `setup` awaits this one's.

    Its tools are what it inherits from `agentrl.tools.sandboxed`. Sandboxes are shared by all
    episodes of a process: an episode waits in `setup` for a free one.
    """

    Config = SandboxConfig
    config: SandboxConfig

    hook_timeout_s = 900.0
    """Of waiting, nearly all of it: what runs in the sandbox has its own limits."""

    async def setup(self) -> None:
        """Take a sandbox, as new."""
        lease = self.services.sandboxes.acquire(self.config.sandbox, queue_timeout_s=_QUEUE_S)
        self.use_sandbox(await self.resources.enter_async_context(lease))
