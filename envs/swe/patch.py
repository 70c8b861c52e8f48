"""Patches as unified diffs, as `git diff` writes them."""

import difflib
import re
from collections.abc import Mapping
from typing import Final

_NO_NEWLINE: Final = "\\ No newline at end of file\n"
_HEADER: Final = re.compile(r'^(?:---|\+\+\+) (?:"?[ab]/)?([^\t\n"]+)', re.MULTILINE)


def make_patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The diff between two sets of files, by name; the same files in both."""
    return "".join(_diff(name, before[name], after[name]) for name in sorted(before))


def _diff(name: str, before: str, after: str) -> str:
    # `splitlines` would take form feeds and the like for line ends.
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    lines = list(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
    whole = "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines)
    return f"diff --git a/{name} b/{name}\n{whole}" if lines else ""


def touched(patch: str) -> frozenset[str]:
    """The files that a patch names, by their path from the root."""
    return frozenset(name for name in _HEADER.findall(patch) if name != "/dev/null")
