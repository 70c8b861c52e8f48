"""Files that are there whole or not at all, whenever the process is killed."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentrl.errors import RunError


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, bring it to the disk, and rename it to `path`.

    A killed process leaves at most a file that begins with a dot and ends in `.tmp`. Raises
    RunError if the place cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            write(temporary)
            sync(temporary)
            temporary.replace(path)
        finally:
            with suppress(OSError):  # it says no more than what went wrong before
                temporary.unlink(missing_ok=True)
        sync(path.parent)


def write_text_atomic(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def sync(path: Path) -> None:
    """Bring a file or directory entry to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Raise what a disk refuses (no space, no permission) as a RunError in one sentence."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: BaseException) -> RunError:
    """The error of a place that could not be written."""
    reason = " ".join(str(error).split())[:200]
    cause: BaseException | None = error
    while cause is not None:  # libraries put words of their own over what the system said
        if isinstance(cause, OSError) and cause.errno:
            reason = os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return RunError(
        f"{path}: could not be written ({reason}); what was there before is intact, so free some "
        "space or make the place writable, and go on"
    )
