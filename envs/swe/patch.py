"""Patches as unified diffs, as `git diff` writes them."""

import difflib
import re
from collections.abc import Mapping
from typing import Final

_NO_NEWLINE: Final = "\\ No newline at end of file\n"
_FILE_PARTS: Final = re.compile(r"^(?=diff --git )", re.MULTILINE)
_NAMED: Final = re.compile(
    r"^(?:diff --git (?P<both>.+)|(?:---|\+\+\+) (?P<side>[^\t\n]+)|"
    r"(?:rename|copy) (?:from|to) (?P<moved>.+))$",
    re.MULTILINE,
)
_ESCAPE: Final = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED: Final = dict(zip(b"abtnvfr", b"\a\b\t\n\v\f\r", strict=True))


def make_patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The diff between two sets of files, by name; one that is empty in a set is not in it."""
    return "".join(_make_git_diff(name, before[name], after[name]) for name in sorted(before))


def _make_git_diff(name: str, before: str, after: str) -> str:
    # `splitlines` would take form feeds and the like for line ends.
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    sides = (f"a/{name}" if before else "/dev/null", f"b/{name}" if after else "/dev/null")
    mode = "" if before and after else f"{'deleted' if before else 'new'} file mode 100644\n"
    lines = list(difflib.unified_diff(old, new, *sides))
    whole = "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines)
    return f"diff --git a/{name} b/{name}\n{mode}{whole}" if lines else ""


def touched(patch: str) -> frozenset[str]:
    """The files that a patch names, by their path from the root."""
    return frozenset(name for part in parts_of(patch) for name in names_in(part))


def parts_of(patch: str) -> list[str]:
    """What a patch does to each file; what stands before the first one is a part too."""
    return _FILE_PARTS.split(patch)


def names_in(part: str) -> frozenset[str]:
    """Every file that one file's part of a patch names; bytes that are no UTF-8 are surrogates."""
    header = re.split(r"^@@ ", part, maxsplit=1, flags=re.MULTILINE)[0]
    names: set[str] = set()
    for match in _NAMED.finditer(header):
        if match["both"]:
            names.update(_parse_names_of_diff_header(match["both"]))
        else:
            names.add(_unquote_git_file_name(match["side"] or match["moved"]))
    return frozenset(names - {"/dev/null", "dev/null", ""})


def _parse_names_of_diff_header(both: str) -> tuple[str, ...]:
    """The names in `a/X b/X`, or in a new or deleted file's `a/X a/X`."""
    half = len(both) // 2  # a name may hold blanks
    name = _unquote_git_file_name(both[:half])
    if name == _unquote_git_file_name(both[half + 1 :]):
        return (name,)
    if both.startswith('"'):
        left, _, right = both[1:].partition('" ')
        return _unquote_git_file_name(f'"{left}"'), _unquote_git_file_name(right)
    left, _, right = both.partition(" b/")
    return _unquote_git_file_name(left), right


def _unquote_git_file_name(name: str) -> str:
    """Without git's prefix and quotes; escapes of quoted names are undone."""
    if name.startswith('"'):
        data = name[1:].removesuffix('"').encode("utf-8", "surrogateescape")
        name = _ESCAPE.sub(_decode_git_name_escape, data).decode("utf-8", "surrogateescape")
    return re.sub(r"^[ab]/", "", name)


def _decode_git_name_escape(match: re.Match[bytes]) -> bytes:
    text = match[1]
    return bytes([int(text, 8) if len(text) == 3 else _ESCAPED.get(text[0], text[0])])
