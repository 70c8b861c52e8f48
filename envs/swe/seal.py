"""What an agent must not decide: the tests, and what says which tests run and how.

Grading takes these files from our copy. A patch's part that names one of them is left out.
"""

import re
from pathlib import PurePosixPath
from typing import Final

_TEST_FOLDERS: Final = frozenset({"tests", "test", "testing", "_tests", "r2e_tests"})
_TEST_FILE: Final = re.compile(r"test_.*\.py|.*_tests?\.py|tests?\.py|conftest\.py")
_RUNNER_FILES: Final = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"}
    | {"setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py", ".coveragerc"}
)  # fmt: skip
_FILE_PARTS: Final = re.compile(r"^(?=diff --git )", re.MULTILINE)
_NAMED: Final = re.compile(
    r"^(?:diff --git (?P<both>.+)|(?:---|\+\+\+) (?P<side>[^\t\n]+)|"
    r"(?:rename|copy) (?:from|to) (?P<moved>.+))$",
    re.MULTILINE,
)


_WORDS: Final = {
    "frames": r"_getframe|currentframe|inspect|traceback|tb_frame|settrace|setprofile",
    "gc": r"\bgc\b",
    "processes": r"subprocess|fork|popen|spawn|multiprocessing|os\.system|os\.exec",
    "ctypes": "ctypes",
}


def kinds_of(text: str) -> tuple[str, ...]:
    """What a file's code does of the things that `runner.guard` reports, before a patch."""
    return tuple(kind for kind, words in _WORDS.items() if re.search(words, text))


def is_test(file: str) -> bool:
    """True for a test file and for what lies in a folder of tests; the path is from the root."""
    path = PurePosixPath(file)
    return bool(_TEST_FOLDERS & set(path.parts[:-1]) or _TEST_FILE.fullmatch(path.name))


def is_sealed(file: str) -> bool:
    """True for tests, their settings and start-up hooks."""
    path = PurePosixPath(file)
    return is_test(file) or path.name in _RUNNER_FILES or path.suffix == ".pth"


def without_sealed(patch: str, sealed: frozenset[str] = frozenset()) -> tuple[str, tuple[str, ...]]:
    """A patch in git's format without the files that are sealed, and the names of those.

    Args:
        patch: what `git diff` printed; what stands before its first file is left out too.
        sealed: further files that are sealed, such as those of a test patch.
    """
    kept: list[str] = []
    left_out: list[str] = []
    for part in _FILE_PARTS.split(patch):
        names = _names(part)
        bad = sorted(name for name in names if is_sealed(name) or name in sealed or _leaves(name))
        # A link could lead to a test, and its target is no name that a rule can judge.
        if bad or re.search(r"^(?:new file )?(?:new )?mode 1[26]0000$", part, re.MULTILINE):
            left_out += bad or sorted(names)
        elif names:
            kept.append(part)
    return "".join(kept), tuple(left_out)


def _names(part: str) -> frozenset[str]:
    """Every file that one file's part of a patch names."""
    header = re.split(r"^@@ ", part, maxsplit=1, flags=re.MULTILINE)[0]
    names: set[str] = set()
    for match in _NAMED.finditer(header):
        if match["both"]:
            names.update(_two(match["both"]))
        else:
            names.add(_plain(match["side"] or match["moved"]))
    return frozenset(names - {"/dev/null", "dev/null", ""})


def _two(both: str) -> tuple[str, str]:
    """The two names of `diff --git a/X b/X`, or of a new or deleted file's `a/X a/X`."""
    half = len(both) // 2  # a name may hold blanks
    if both[:half] == both[half + 1 :]:
        return _plain(both[:half]), _plain(both[:half])
    left, _, right = both.partition(" b/")
    if both.startswith('"'):
        left, _, right = both[1:].partition('" ')
    return _plain(left), _plain(right if both.startswith('"') else f"b/{right}")


def _plain(name: str) -> str:
    """Without git's prefix and quotes; escapes of quoted names are undone."""
    if name.startswith('"'):
        name = name[1:].rstrip('"').encode().decode("unicode_escape").encode("latin-1").decode()
    return re.sub(r"^[ab]/", "", name)


def _leaves(name: str) -> bool:
    return name.startswith("/") or ".." in PurePosixPath(name).parts or ".git" in name.split("/")
