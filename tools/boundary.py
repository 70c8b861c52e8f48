"""The border between our code and a user's: whatever a user's code raises gets an owner."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from agentrl.errors import AgentrlError, EnvironmentFault, ToolError


@contextmanager
def user_code(what: str, *, shows_tool_errors: bool = False) -> Generator[None]:
    """Turn an exception of the user's code into an EnvironmentFault that says where it came from.

    Errors of agentrl keep their meaning. A ToolError is for the model to see, which only a tool can
    arrange; elsewhere it is a fault like any other. `sys.exit()` in a tool is one too, and so is a
    cancellation that nobody asked for.
    """
    try:
        yield
    except ToolError as error:
        if shows_tool_errors:
            raise
        raise EnvironmentFault(f"{what} raised ToolError: {error}") from error
    except AgentrlError:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        raise EnvironmentFault(f"{what} raised {type(error).__name__}: {error}") from error


def _is_cancelled() -> bool:
    """True if this runs in a task that was told to stop."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return False
    return task is not None and task.cancelling() > 0
