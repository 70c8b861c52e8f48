"""Files that are there whole or not at all, whenever the process is killed."""

import os
from collections.abc import Callable
from pathlib import Path


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, bring it to the disk, and rename it to `path`.

    A killed process leaves at most a file that begins with a dot and ends in `.tmp`.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write(temporary)
        sync(temporary)
        temporary.replace(path)
    finally:
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
