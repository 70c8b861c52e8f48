"""The border between our code and a user's: whatever a user's code raises gets an owner.

It says where in a user's code that was, and in places with one line for it, what in one line.
"""

import asyncio
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import TracebackException, walk_tb
from types import TracebackType
from typing import Final

from agentrl.errors import AgentrlError, EnvironmentFault, ToolError
from agentrl.terminated import Terminated

Place = tuple[str, int, str]
"""File, line and function."""

_FRAME: Final = re.compile(r'^  File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)
_LIBRARIES: Final = tuple(
    f"{folder}/" for name, folder in sysconfig.get_paths().items() if name in ("stdlib", "purelib")
)
_OWN: Final = f"{Path(__file__).parent}/"
_LIMIT: Final = 240
_TAIL: Final = 80
"""The end of a text often says where it comes from."""


def place_of(error: BaseException) -> str:
    """` (FILE, line N, in FUNCTION)`: the last frame of a user's code, else the last of all.

    Frames of agentrl and of installed libraries are not a user's. The traceback of another process
    is in the exception's notes. Empty if there is no frame.
    """
    frames = [*_list_traceback_frames(error)]
    own = [frame for frame in frames if not frame[0].startswith((*_LIBRARIES, _OWN, "<"))]
    outside = [frame for frame in frames if not frame[0].startswith((*_LIBRARIES, "<"))]
    for found in (own, outside, frames):
        if found:
            file, line, function = found[-1]
            return f" ({short_path(file)}, line {line}, in {function})"
    return ""


def said_by(error: BaseException) -> str:
    """What an exception says, also where its own `__str__` raises."""
    return str(TracebackException(type(error), error, None))


def short_path(file: str) -> str:
    """Relative to the current directory where the file is below it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _list_traceback_frames(error: BaseException) -> Iterator[Place]:
    for frame, line in walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line, frame.f_code.co_name
    for note in getattr(error, "__notes__", ()):
        for file, line, function in _FRAME.findall(note):
            yield file, int(line), function


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
        if not self._passes_boundary_unchanged(error):
            what = f"{self._what} raised {type(error).__name__}: {said_by(error)}"
            raise self._fault(what + place_of(error)) from error

    def _passes_boundary_unchanged(self, error: BaseException) -> bool:
        if isinstance(error, ToolError):
            return self._shows_tool_errors
        if isinstance(error, asyncio.CancelledError):
            # It passes if this runs in a task that was told to stop.
            try:
                task = asyncio.current_task()
            except RuntimeError:  # a thread without a loop
                return False
            return task is not None and task.cancelling() > 0
        return isinstance(error, AgentrlError | Terminated)


def one_line(text: str) -> str:
    """The text without line breaks and control characters; a long one loses its middle.

    For tables and lines that people read: what is kept (JSON, events, episodes) has all of it.
    """
    words = " ".join(text.split())
    shown = words if words.isprintable() else "".join(map(_escape_unprintable, words))
    if len(shown) <= _LIMIT:
        return shown
    return f"{shown[: _LIMIT - _TAIL - 5]} ... {shown[-_TAIL:]}"


def _escape_unprintable(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]
