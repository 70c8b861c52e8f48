"""What an agent must not decide: the tests, and what says which tests run and how.

Grading takes these files from our copy. A patch's part that names one of them is left out. Which
ones they are is said by the task's own lists: a folder's name only tells how far the folder of a
listed test reaches.
"""

import re
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Final

from agentrl.envs.swe.patch import names_in, parts_of

_TEST_FOLDERS: Final = frozenset({"tests", "test", "testing", "_tests", "r2e_tests"})
_TEST_FILE: Final = re.compile(r"test_.*\.py|.*_tests?\.py|tests?\.py|conftest\.py")
_START_FILES: Final = frozenset({"sitecustomize.py", "usercustomize.py"})
_RUNNER_FILES: Final = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"}
    | {"setup.cfg", "pyproject.toml", ".coveragerc"}
)  # fmt: skip
_CODE: Final = frozenset({".py", ".pyi", ".pyx", ".pxd", ".c", ".h", ".cc", ".cpp", ".rs"})
_OUTSIDE: Final = re.compile(r"\A/|(?:\A|/)(?:\.\.|\.git)(?:/|\Z)", re.IGNORECASE)
"""Names that lead out of the repository, or into git's own folder."""
_ROOT: Final = PurePosixPath()


def is_test(file: str) -> bool:
    """True if a file is called like a test, or lies in a folder that is; for choosing, not judging.

    The path is from the root.
    """
    path = PurePosixPath(file)
    return bool(_TEST_FOLDERS & set(path.parts[:-1]) or _TEST_FILE.fullmatch(path.name))


class Seal:
    """The files of one task that are taken from our copy.

    These are the test files; all that lies in folders of tests; in the folders above, pytest's
    settings, conftest.py, and `__init__.py` if nothing below it is to be repaired. A test that lies
    among sources keeps what is no code beside it. Start-up hooks are sealed wherever they are.
    """

    def __init__(self, tests: Collection[str] = (), sources: Collection[str] = ()) -> None:
        """Make it.

        Args:
            tests: the test files that the task lists.
            sources: the files that its reference changes; none: unknown.
        """
        self._tests = frozenset(tests)
        self._sources = frozenset(sources) - self._tests
        self._repaired = {p for file in self._sources for p in PurePosixPath(file).parents}
        self._above = {p for file in self._tests for p in PurePosixPath(file).parents} | {_ROOT}
        folders: set[PurePosixPath] = set()
        for file in self._tests:
            # So far the folder of a test reaches: by its name, else as far up as there is one.
            above = [f for f in PurePosixPath(file).parents if f != _ROOT]
            named = (folder for folder in above if folder.name in _TEST_FOLDERS)
            folders.add(next(named, above[-1] if above else _ROOT))
        self._whole = {f for f in folders if f.name in _TEST_FOLDERS or self._sources}
        self._whole -= self._repaired | {_ROOT}
        self._beside = {PurePosixPath(file).parent for file in self._tests}

    def holds(self, file: str) -> bool:
        """True if a file is sealed; the path is from the root."""
        path = PurePosixPath(file)
        if file in self._tests or path.name in _START_FILES or path.suffix == ".pth":
            return True
        folders = frozenset(path.parents)
        if self._whole & folders or (path.name in _RUNNER_FILES and path.parent in self._above):
            return True
        if path.name == "__init__.py" and self._sources:
            return path.parent in self._above - self._repaired
        if path.suffix in _CODE or file in self._sources:
            return False
        return path.parent in self._beside or bool((self._beside - {_ROOT}) & folders)


def without_sealed(patch: str, seal: Seal) -> tuple[str, tuple[str, ...]]:
    """A patch in git's format without the files that are sealed, and the names of those.

    What stands before its first file is left out too.
    """
    kept: list[str] = []
    left_out: list[str] = []
    for part in parts_of(patch):
        names = names_in(part)
        bad = sorted(name for name in names if seal.holds(name) or _OUTSIDE.search(name))
        # A link could lead to a test, and its target is no name that a rule can judge.
        if bad or re.search(r"^(?:new file )?(?:new )?mode 1[26]0000$", part, re.MULTILINE):
            left_out += bad or sorted(names)
        elif names and part.startswith("diff --git "):
            kept.append(part)
    return "".join(kept), tuple(left_out)
