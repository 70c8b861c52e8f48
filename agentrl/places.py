"""Where in a user's code an exception came from."""

import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import TracebackException, walk_tb
from typing import Final

Place = tuple[str, int, str]
"""File, line and function."""

_FRAME: Final = re.compile(r'^  File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)
_LIBRARIES: Final = tuple(
    f"{folder}/" for name, folder in sysconfig.get_paths().items() if name in ("stdlib", "purelib")
)
_OWN: Final = f"{Path(__file__).parent}/"


def place_of(error: BaseException) -> str:
    """` (FILE, line N, in FUNCTION)`: the last frame of a user's code, else the last of all.

    Frames of agentrl and of installed libraries are not a user's. The traceback of another process
    is in the exception's notes. Empty if there is no frame.
    """
    frames = [*_frames(error)]
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


def _frames(error: BaseException) -> Iterator[Place]:
    for frame, line in walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line, frame.f_code.co_name
    for note in getattr(error, "__notes__", ()):
        for file, line, function in _FRAME.findall(note):
            yield file, int(line), function
