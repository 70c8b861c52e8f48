"""Which files of an unpacked package are its sources and its tests."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from agentrl.envs.swe.seal import is_test
from agentrl.errors import ConfigError

_NO_SOURCES: Final = frozenset(
    {"doc", "docs", "example", "examples", "benchmark", "benchmarks", "bench", "perf", "tools"}
    | {"build", "scripts", "bin"}
)  # fmt: skip
_NO_SOURCE_FILES: Final = frozenset({"setup.py", "noxfile.py", "tasks.py", "__main__.py"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageLayout:
    """The files of an unpacked package, by their path from the root."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    paths: tuple[str, ...]
    """Folders for the import path."""


def layout(root: Path, name: str) -> PackageLayout:
    """Find the sources and the tests.

    Raises:
        ConfigError: There are no tests, or no sources.
    """
    files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.py"))
    tests = tuple(file for file in files if is_test(file))
    if not any(PurePosixPath(file).name != "__init__.py" for file in tests):
        raise ConfigError(f"{name} has no tests in its source archive; choose another package")
    inside = "src/" if any(file.startswith("src/") for file in files) else ""
    sources = tuple(
        file
        for file in files
        if file.startswith(inside)
        and not is_test(file)
        and not _NO_SOURCES & set(PurePosixPath(file).parts)
        and PurePosixPath(file).name not in _NO_SOURCE_FILES
    )
    if not sources:
        raise ConfigError(f"{name} has tests but no Python sources beside them")
    # The root too: tests import one another as `tests.helpers`.
    return PackageLayout(sources=sources, tests=tests, paths=("src", ".") if inside else (".",))
