"""How the tests of an instance are run: by our runner, or by a command that leaves a log.

The table knows the repositories of the public sets whose suites are not plain pytest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal, TypeAlias

Reads: TypeAlias = Literal["report", "pytest", "unittest", "tap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCommand:
    """A command; the tests' files or modules come behind it.

    `reads` says where outcomes come from: the report of our runner (the command is then what runs
    `runner.py`), or the command's log. `names` says what the instance calls a test: its whole id,
    or what follows the file ("tail", joined by dots).
    """

    __test__ = False  # pytest takes every class of this name for tests

    argv: tuple[str, ...]
    reads: Reads = "report"
    names: Literal["full", "tail"] = "full"
    targets: Literal["files", "modules"] = "files"


RUNNER_IN_IMAGE: Final = TestCommand(argv=("python", "-I"))
"""pytest and the package are in the image's own site-packages."""
_PYTEST_LOG: Final = ("python", "-m", "pytest", "-rA", "--color=no", "-p", "no:cacheprovider")
COMMANDS: Final[Mapping[str, TestCommand]] = {
    "django/django": TestCommand(
        argv=("./tests/runtests.py", "--verbosity", "2", "--settings=test_sqlite", "--parallel=1"),
        reads="unittest",
        targets="modules",
    ),
    # Its issues name functions only.
    "sympy/sympy": TestCommand(argv=_PYTEST_LOG, reads="pytest", names="tail"),
    # The pytest under test is the one that runs, so our runner cannot stand above it.
    "pytest-dev/pytest": TestCommand(argv=_PYTEST_LOG, reads="pytest"),
    "python/mypy": TestCommand(argv=(*_PYTEST_LOG, "-n0"), reads="pytest"),
}
"""By repository; every other one gets `RUNNER_IN_IMAGE`."""
R2E: Final = TestCommand(
    argv=(*_PYTEST_LOG, "-W", "ignore", "r2e_tests"), reads="pytest", names="tail"
)


def targets(command: TestCommand, tests: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    """What to run, for the end of the command.

    Args:
        command: the instance's.
        tests: ids of the expected tests.
        files: test files of the instance, for ids that name none.
    """
    named = {test.partition("::")[0] for test in tests if "::" in test} or set(files)
    if command.targets == "modules":
        return tuple(sorted({module_of(file) for file in files if file.endswith(".py")}))
    return tuple(sorted(named))


def module_of(file: str) -> str:
    """`tests/a/test_b.py` as `a.test_b`, the module that a command takes."""
    parts = PurePosixPath(file).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "tests" else parts)
