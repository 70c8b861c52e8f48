"""The border between our code and a user's: whatever a user's code raises gets an owner."""

import asyncio
from types import TracebackType

from agentrl.errors import AgentrlError, EnvironmentFault, ToolError
from agentrl.places import place_of, said_by
from agentrl.terminated import Terminated


class user_code:
    """Turn an exception of the user's code into a `fault` that says where it came from.

    Errors of agentrl keep their meaning. A ToolError is for the model to see, which only a tool can
    arrange; elsewhere it is a fault like any other. So is what is no Exception: `sys.exit()`, a
    GeneratorExit, a cancellation that nobody asked for. A signal that ends the process is not.
    """

    __slots__ = ("_fault", "_shows_tool_errors", "_what")

    def __init__(
        self,
        what: str,
        *,
        shows_tool_errors: bool = False,
        fault: type[AgentrlError] = EnvironmentFault,
    ) -> None:
        self._what = what
        self._fault = fault
        self._shows_tool_errors = shows_tool_errors

    def __enter__(self) -> None:
        """Nothing happens before the code."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, KeyboardInterrupt):
            return
        if not self._keeps_meaning(error):
            what = f"{self._what} raised {type(error).__name__}: {said_by(error)}"
            raise self._fault(what + place_of(error)) from error

    def _keeps_meaning(self, error: BaseException) -> bool:
        if isinstance(error, ToolError):
            return self._shows_tool_errors
        if isinstance(error, asyncio.CancelledError):
            return _is_cancelled()
        return isinstance(error, AgentrlError | Terminated)


def _is_cancelled() -> bool:
    """True if this runs in a task that was told to stop."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return False
    return task is not None and task.cancelling() > 0
