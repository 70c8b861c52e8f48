"""Is there room for what a run will write?"""

import shutil
from pathlib import Path

from agentrl.errors import ConfigError


def check_disk(path: Path, need_bytes: int) -> None:
    """Refuse to start where the disk of `path` (which need not exist yet) is too full.

    Raises:
        ConfigError: fewer than `need_bytes` are free.
    """
    free = free_bytes(path)
    if free < need_bytes:
        raise ConfigError(
            f"{path}: got {_format_bytes(free)} of free disk space, expected at least "
            f"{_format_bytes(need_bytes)}; free some space or choose another place with --runs-dir"
        )


def free_bytes(path: Path) -> int:
    """The bytes that are free at a path or at its nearest parent that exists."""
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def _format_bytes(num_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.4g} TB"
