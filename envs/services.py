"""What the environments of a run share."""

import atexit
import functools
import os
from typing import TYPE_CHECKING

from agentrl.tools import AbandonedThreads
from agentrl.workers import WorkerPool

if TYPE_CHECKING:
    from agentrl.sandboxes import SandboxPools

_NUM_TOOL_WORKERS = 16
"""More than cores: a call that hangs until its timeout must not hold up the others."""
_NUM_ENV_WORKERS = 1024
"""Each holds one episode: how many there are at once is the agent loop's choice."""


class EnvServices:
    """Processes for isolated work, sandboxes, the count of abandoned threads.

    Verifiers have processes of their own, so that scores never wait for tools that hang. Processes
    start with the first call and end with `close`.
    """

    def __init__(
        self,
        *,
        tool_pool: WorkerPool | None = None,
        verifier_pool: WorkerPool | None = None,
        env_pool: WorkerPool | None = None,
        census: AbandonedThreads | None = None,
        deadline_s: float = 30.0,
    ) -> None:
        """A process that was stopped for `deadline_s` is killed, a sandbox's host given up."""
        self._deadline_s = deadline_s
        pool = functools.partial(WorkerPool, deadline_s=deadline_s)
        self.tool_pool = tool_pool or pool(
            _NUM_TOOL_WORKERS, "tools", preload=("agentrl.tools.arithmetic",)
        )
        self.verifier_pool = verifier_pool or pool(
            os.cpu_count() or 1, "verifiers", preload=("agentrl.verifiers",)
        )
        self.env_pool = env_pool or pool(
            _NUM_ENV_WORKERS, "environments", preload=("agentrl.envs",)
        )
        self.census = census or AbandonedThreads()

    @functools.cached_property
    def sandboxes(self) -> "SandboxPools":
        """The sandboxes that episodes share; those in use are waited for."""
        from agentrl.sandboxes import SandboxPools

        return SandboxPools(deadline_s=self._deadline_s)

    @property
    def isolation(self) -> list[tuple[str, ...]]:
        """The backends of the sandboxes that were used, and what each held."""
        return self.sandboxes.isolation if "sandboxes" in vars(self) else []

    def close(self) -> None:
        """End the processes and sandboxes; a second call does nothing."""
        if "sandboxes" in vars(self):
            from agentrl.sandboxes import run_sync

            run_sync(self.sandboxes.close())
        self.close_workers()

    def close_workers(self) -> None:
        """End the processes; sandboxes end themselves with the process."""
        self.tool_pool.close()
        self.verifier_pool.close()
        self.env_pool.close()


@functools.cache
def default_services() -> EnvServices:
    """The services of environments that were given none: one set per process."""
    services = EnvServices()
    atexit.register(services.close_workers)
    return services
