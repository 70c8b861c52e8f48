"""Edits of a file's text that leave every byte alone which they do not name.

A file is read as UTF-8, or as what its byte order mark says, so that each byte has a place in the
text, undecodable ones too; they are shown as U+FFFD. What is shown can be given back as `old`, if
it is shown once: a U+FFFD stands for such a byte, and a line end for whichever the file has there;
where `new` says the same, it stays.
"""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final, Literal

from agentrl.errors import ToolError

_MARKED: Final = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_UNKNOWN: Final = "\ufffd"
_MOST_PLACES: Final = 10
_MOST_COMPARED: Final = 200_000
"""Of so many pairs of pieces a difference is found while others can wait."""
_ODD: Final = re.compile("[\ud800-\udfff]")
_LOOSE: Final = f"(\n|{_UNKNOWN})"
"""What stands for one of several things in the file."""


@dataclass(frozen=True, slots=True)
class FileText:
    """A file's bytes as text, and the way back."""

    text: str
    codec: str = "utf-8"
    errors: Literal["surrogateescape", "surrogatepass"] = "surrogateescape"

    @classmethod
    def read(cls, data: bytes) -> "FileText":
        """The text of a file; `encoded` gives the same bytes."""
        for mark, codec in _MARKED:
            if data.startswith(mark):
                text = data.decode(codec, "replace")
                if text.encode(codec, "surrogatepass") == data:
                    return cls(text, codec, "surrogatepass")
        return cls(data.decode("utf-8", "surrogateescape"))

    def encoded(self, text: str) -> bytes:
        """The bytes of the text after an edit."""
        return text.encode(self.codec, self.errors)

    @property
    def shown(self) -> str:
        """The text for people and models; what is no character is U+FFFD."""
        return _ODD.sub(_UNKNOWN, self.text)

    @property
    def looks(self) -> str:
        """The text as it can be given back: line ends are line feeds, no character is U+FFFD."""
        return self.folded(self.shown)

    def folded(self, old: str) -> str:
        """A text as it would be in `looks`."""
        return re.sub(self.line_end, "\n", old)

    def place_of(self, place: int) -> int:
        """Where in the text a place of `looks` is."""
        longer = 0
        for end in re.finditer("\r\n", self.text) if "\n" in self.text else ():
            if end.start() - longer >= place:
                break
            longer += 1
        return place + longer

    @property
    def line_end(self) -> str:
        """A pattern of what ends a line here: a carriage return alone only if nothing else does."""
        return r"\r?\n" if "\n" in self.text else r"\r"

    @property
    def lines(self) -> list[str]:
        """The lines with their ends; a last line without one is a line too."""
        end = "\n" if "\n" in self.text else "\r"
        parts = self.text.split(end)
        return [part + end for part in parts[:-1]] + [parts[-1]] * bool(parts[-1])

    def end_at(self, place: int) -> str:
        """The end of the line that a place is in; else of the one before, else a line feed."""
        if after := re.compile(self.line_end).search(self.text, place):
            return after[0]
        before = re.findall(self.line_end, self.text[:place])
        return before[-1] if before else "\n"

    def require_writable(self, new: str) -> None:
        """Refuse what cannot be written beside what is there; the error is for the model."""
        if self.errors == "surrogateescape" and _ODD.search(self.text) and not new.isascii():
            raise ToolError(
                "the file is not in UTF-8 and its encoding is not known, so only ASCII can be "
                f"added to it, not {next(c for c in new if not c.isascii())!a}; leave bytes that "
                "are shown as U+FFFD as they are, or edit the file by a command"
            )


def line_shown(line: str) -> str:
    """A line for people and models: without its end."""
    return _ODD.sub(_UNKNOWN, line.removesuffix("\n").removesuffix("\r"))


def require_text(text: str, name: str) -> str:
    """Refuse what is no text: half a surrogate pair has no bytes."""
    if found := _ODD.search(text):
        raise ToolError(f"{name} has {found[0]!a}, which is no character; leave it out")
    return text


def require_argument(text: str, name: str) -> str:
    """Refuse what no program takes as an argument: NUL, and what is no text."""
    if "\0" in text:
        raise ToolError(f"{name} has a NUL byte, which cannot be passed on; leave it out")
    return require_text(text, name)


def replace_once(file: FileText, old: str, new: str, path: str) -> tuple[str, int]:
    """The text with `old`, which it has exactly once, replaced; and where that begins."""
    if not old:
        raise ToolError("old_str is empty; to add text use insert, to make a file use create")
    exact = _find_places_of_text(file.text, old)
    places = _find_places_of_text(file.looks, file.folded(old))
    # What is shown twice is asked for, unless a carriage return tells the one that is meant.
    named = bool(places) and "\r" in old and len(exact) == 1
    if len(places) != 1 and not named:
        raise ToolError(_explain_not_found_once(file, old, path, places))
    start = exact[0] if named else file.place_of(places[0])
    there = [old]
    if exact != [start]:
        old, new = file.folded(old), new.replace("\r\n", "\n")
        kinds = {"\n": file.line_end, _UNKNOWN: f"{_ODD.pattern}|{_UNKNOWN}"}
        pattern = (f"({kinds.get(p) or re.escape(p)})" for p in re.split(_LOOSE, old))
        found = re.compile("".join(pattern)).match(file.text, start)
        there = list(found.groups()) if found else [old]
        parts = _align_new_text(old, new, there, file.end_at(start))
        file.require_writable("".join(text for text, is_new in parts if is_new))
        new = "".join(text for text, _ in parts)
    else:
        file.require_writable("".join(set(new).difference(old)))
        if "\n" not in old:
            new = re.sub("(?<!\r)\n", lambda _: file.end_at(start), new)
    return file.text[:start] + new + file.text[start + len("".join(there)) :], start


def insert_lines(file: FileText, line: int | None, new: str) -> tuple[str, int]:
    """The text with a line or more after that line, ended as the file's lines are."""
    lines = file.lines
    if line is None or not 0 <= line <= len(lines):
        raise ToolError(f"insert_line is {line}, expected 0 to {len(lines)}")
    file.require_writable(new)
    mark = len(file.text) - len(file.text.removeprefix("\ufeff"))
    place = len("".join(lines[:line])) if line else mark
    ended = re.search(f"(?:{file.line_end})\\Z", lines[line - 1]) if line else None
    end = ended[0] if ended else file.end_at(place)
    added = end.join(new.replace("\r\n", "\n").removesuffix("\n").split("\n"))
    added = added + end if ended or not line else end + added
    return file.text[:place] + added + file.text[place:], place


def _find_places_of_text(text: str, old: str) -> list[int]:
    """Where it is, overlapping places too; no more than tell that there are too many."""
    places: list[int] = []
    place = text.find(old)
    while place >= 0 and len(places) <= _MOST_PLACES:
        places.append(place)
        place = text.find(old, place + 1)
    return places


def _align_new_text(old: str, new: str, there: list[str], end: str) -> list[tuple[str, bool]]:
    """The new text, with what the file has wherever the old text says the same; is it added?"""
    olds, news = re.split(_LOOSE, old), re.split(_LOOSE, new)
    parts: list[tuple[str, bool]] = []
    for kind, first, last, begin, stop in _find_edit_opcodes(olds, news):
        if kind == "equal":
            parts += [(text, False) for text in there[first:last]]
        else:
            parts += [(end if text == "\n" else text, True) for text in news[begin:stop]]
    return parts


def _find_edit_opcodes(old: list[str], new: list[str]) -> Sequence[tuple[str, int, int, int, int]]:
    """The steps from one list to the other; where both are long, one step changes the middle."""
    if len(old) * len(new) <= _MOST_COMPARED:
        return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    pairs = list(zip(old, new, strict=False))
    head = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    ends = list(zip(reversed(old[head:]), reversed(new[head:]), strict=False))
    tail = next((i for i, (a, b) in enumerate(ends) if a != b), len(ends))
    last, stop = len(old) - tail, len(new) - tail
    return [
        ("equal", 0, head, 0, head),
        ("replace", head, last, head, stop),
        ("equal", last, len(old), stop, len(new)),
    ]


def _explain_not_found_once(file: FileText, old: str, path: str, places: list[int]) -> str:
    if places:
        text = file.looks
        numbers = [str(len(FileText(text[:p] + "x").lines)) for p in places[:_MOST_PLACES]]
        many = f"more than {_MOST_PLACES}" if len(places) > _MOST_PLACES else f"{len(places)}"
        return (
            f"old_str is in {path} {many} times, at the lines {', '.join(numbers)}; give "
            "more of the text around the one that is meant"
        )
    squeezed = " ".join(old.split())
    similar = bool(squeezed) and squeezed in " ".join(file.looks.split())
    hint = "; only the white space differs" if similar else "; view the file and copy it exactly"
    return f"old_str is not in {path}{hint}"
