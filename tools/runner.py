"""Runs one call of one tool, wherever that kind of tool runs.

| tool         | runs in            | at its timeout                                          |
|--------------|--------------------|---------------------------------------------------------|
| async        | the event loop     | is cancelled; the model sees it                         |
| sync         | the episode thread | goes on alone: the episode ends (`ToolHangs`)           |
| isolated     | a process          | is killed; the model sees it                            |
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from agentrl.aio import OutOfTime, within
from agentrl.boundary import user_code
from agentrl.errors import EnvironmentFault, EpisodeError, ToolError
from agentrl.tools.declare import ToolSpec
from agentrl.workers import WorkerDied, WorkerError, WorkerPool, WorkerTimeout


class ToolTimeout(ToolError):
    """The call ran out of time and was stopped; the model sees it and the episode goes on."""

    recorded_as = "tool_timeout"


class ToolHangs(EpisodeError):
    """A sync tool outlived its timeout and could not be stopped: the episode ends."""


class SyncCaller(Protocol):
    """Runs sync code of an episode on the thread of that episode."""

    async def call_sync(
        self, what: str, function: Callable[[], object], timeout_s: float
    ) -> object:
        """The function's result; TimeoutError if it goes on alone."""
        ...


async def run_tool(
    spec: ToolSpec,
    owner: object,
    keywords: Mapping[str, object],
    *,
    timeout_s: float,
    caller: SyncCaller,
    pool: Callable[[], WorkerPool],
) -> object:
    """What the tool returns for keyword arguments that `spec.bind` made.

    Raises:
        ToolError: For the model: what the tool raised, or a ToolTimeout.
        ToolHangs: The thread is still in the tool.
        EnvironmentFault: The tool raised something else.
    """
    name, limit_s = spec.schema.name, spec.timeout_s or timeout_s
    if spec.isolated:
        return await run_isolated(
            pool(), name, spec.function, (None,) * spec.takes_self, keywords, limit_s
        )
    positional = (owner,) if spec.takes_self else ()
    if spec.is_async:
        try:
            return await within(limit_s, _await_tool(spec, positional, keywords))
        except OutOfTime:
            raise timed_out(limit_s) from None

    def call() -> object:
        with user_code(f"tool {name}", shows_tool_errors=True):
            return spec.function(*positional, **keywords)

    try:
        return await caller.call_sync(f"tool {name}", call, limit_s)
    except TimeoutError:
        raise ToolHangs(f"tool {name} did not end within {limit_s:g} s") from None


async def _await_tool(
    spec: ToolSpec, positional: tuple[object, ...], keywords: Mapping[str, object]
) -> object:
    with user_code(f"tool {spec.schema.name}", shows_tool_errors=True):
        return await spec.function(*positional, **keywords)


async def run_isolated(
    pool: WorkerPool,
    name: str,
    function: Callable[..., object],
    positional: tuple[object, ...],
    keywords: Mapping[str, object],
    timeout_s: float,
) -> object:
    """The function's result from a process of the pool; errors as in `run_tool`.

    A process that dies is the call's fault: nothing else runs in it.
    """
    try:
        with user_code(f"tool {name}", shows_tool_errors=True):
            return await pool.call(
                _call_in_worker_process, function, positional, dict(keywords), timeout_s=timeout_s
            )
    except WorkerTimeout:
        raise timed_out(timeout_s) from None
    except WorkerDied as error:
        raise ToolError(f"the process of tool {name} died: {error}") from error
    except WorkerError as error:
        raise EnvironmentFault(f"tool {name}: {error}") from error


def timed_out(timeout_s: float) -> ToolTimeout:
    """The error that a model sees after a timeout."""
    return ToolTimeout(f"timed out after {timeout_s:g} s")


def _call_in_worker_process(
    function: Callable[..., object], positional: tuple[object, ...], keywords: dict[str, object]
) -> object:
    return function(*positional, **keywords)
