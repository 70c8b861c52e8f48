"""Literals as Python writes them, JSON's words among them: linear, bounded, nothing evaluated.

A line break may stand in a string as it is, since chat templates write it so.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.tokens.formats.scan import (
    MAX_CHARS,
    MAX_DEPTH,
    BadJson,
    Extent,
    JsonText,
    cut_off,
    read,
)
from agentrl.types import Json

_STRUCTURE = re.compile(r"""["'()\[\]{}]""")
_QUOTE = re.compile(r"'''|\"\"\"|'|\"")
_WORD = re.compile(r"[\w.+-]+")
_NUMBER = re.compile(r"-?\d[\d.eE+-]*")
_KEY = re.compile(r"[^\W\d]\w*")
_SPACE = re.compile(r"[ \t\r\n]*")
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(\n|.))", re.DOTALL
)
_ESCAPED = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "/": "/", "\n": "",
}  # fmt: skip
_WORDS: dict[str, Json] = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip


def find_close(text: str, start: int) -> Extent:
    """The end of what the bracket at `start` opens, strings skipped whatever they hold."""
    depth, position, limit = 0, start, start + MAX_CHARS
    while found := _STRUCTURE.search(text, position, limit):
        position = found.end()
        if found[0] in "\"'":
            position = _find_end_of_quoted_string(text, found.start(), limit)
            if position < 0:
                break
        depth += (found[0] in "([{") - (found[0] in ")]}")
        if depth == 0:
            return Extent(position)
    return cut_off(text, limit, "call")


def find_item_end(text: str, start: int, until: str, is_marker: Callable[[int], bool]) -> Extent:
    """Where the item of a list ends that begins at `start`.

    That is before one of `until`, before a marker or a bracket that it did not open.
    """
    structure = re.compile(rf"""["'()\[\]{{}}<{re.escape(until)}]""")
    position, limit = start, start + MAX_CHARS
    while found := structure.search(text, position, limit):
        character, position = found[0], found.end()
        if character in until + ")]}" or is_marker(found.start()):
            return Extent(found.start())
        if character in "([{":
            inside = find_close(text, found.start())
            if inside.fault:
                return inside
            position = inside.end
        elif character in "\"'":
            position = _find_end_of_quoted_string(text, found.start(), limit)
            if position < 0:
                break
    return cut_off(text, limit, "call")


def _find_end_of_quoted_string(text: str, start: int, limit: int) -> int:
    """The place behind the string that begins at `start`; -1 if it does not end."""
    quote = _match_opening_quote(text, start)
    pattern = re.compile(rf"{quote}|\\")
    position = start + len(quote)
    while found := pattern.search(text, position, limit):
        if found[0] != "\\":
            return found.end()
        position = found.end() + 1
    return -1


def _match_opening_quote(text: str, start: int) -> str:
    match = _QUOTE.match(text, start)
    return match[0] if match else ""


def read_keywords(text: str) -> dict[str, Json]:
    """The arguments in `KEY=VALUE, KEY=VALUE`. Raises BadJson."""
    return _Literals(text).pairs("", "=", _Literals.name)


@dataclass(slots=True)
class _Literals:
    text: str
    position: int = 0

    def pairs(
        self, close: str, between: str, key: Callable[["_Literals"], str], depth: int = 0
    ) -> dict[str, Json]:
        """Keys and values up to `close`, or to the end of the text."""
        found: dict[str, Json] = {}
        while not self._take_closing_bracket_or_end(close):
            name = key(self)
            self._expect_character(between)
            if name in found:
                raise BadJson(f"the key {name[:60]!r} is given twice")
            found[name] = self.value(depth + 1)
            self._skip_comma_between_items(close)
        return found

    def name(self) -> str:
        """The name before `=`."""
        match = _KEY.match(self.text, self.position)
        if not match:
            raise BadJson("write each argument as name=value")
        self.position = match.end()
        return match[0]

    def value(self, depth: int) -> Json:
        """The literal that begins here."""
        self._skip_white_space()
        if depth > MAX_DEPTH:
            raise BadJson(f"nested deeper than {MAX_DEPTH} levels", "too_large")
        opening = self.text[self.position : self.position + 1]
        if opening and opening in "[(":
            self.position += 1
            close = "]" if opening == "[" else ")"
            items: list[Json] = []
            while not self._take_closing_bracket_or_end(close):
                items.append(self.value(depth + 1))
                self._skip_comma_between_items(close)
            return items
        if opening == "{":
            self.position += 1
            return self.pairs("}", ":", _Literals._read_string_literal, depth)
        if opening and opening in "\"'":
            return self._read_string_literal()
        match = _WORD.match(self.text, self.position)
        word = match[0] if match else ""
        self.position += len(word)
        if word in _WORDS:
            return _WORDS[word]
        if not _NUMBER.fullmatch(word):
            shown = word[:40] or self.text[self.position : self.position + 1]
            raise BadJson(f"{shown!r} is no literal; write a number, a string in quotes, a list")
        return read(JsonText(word))

    def _read_string_literal(self) -> str:
        begin, quote = self.position, _match_opening_quote(self.text, self.position)
        end = _find_end_of_quoted_string(self.text, begin, len(self.text)) if quote else -1
        if end < 0:
            raise BadJson("expected a string in quotes")
        self.position = end
        inside = self.text[begin + len(quote) : end - len(quote)]
        text = _ESCAPE.sub(_decode_python_escape, inside) if "\\" in inside else inside
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise BadJson("a string holds half of a surrogate pair") from error

    def _take_closing_bracket_or_end(self, close: str) -> bool:
        """True, behind it, if `close` is here; without it, at the end of the text."""
        self._skip_white_space()
        if self.position >= len(self.text):
            if close:
                raise BadJson(f"expected {close}")
            return True
        here = bool(close) and self.text[self.position] == close
        self.position += here
        return here

    def _skip_comma_between_items(self, close: str) -> None:
        self._skip_white_space()
        at = self.text[self.position : self.position + 1]
        if at == ",":
            self.position += 1
        elif at != close:
            raise BadJson(f"expected , or {close or 'the end'}, got {at!r}")

    def _expect_character(self, character: str) -> None:
        self._skip_white_space()
        if self.text[self.position : self.position + 1] != character:
            raise BadJson(f"expected {character}; write each argument as name=value")
        self.position += 1

    def _skip_white_space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        self.position = match.end() if match else self.position


def _decode_python_escape(match: re.Match[str]) -> str:
    """One escape; one that Python does not know stays as it is written."""
    code = match[1] or match[2] or match[3]
    if code or match[4]:
        number = int(code, 16) if code else int(match[4], 8)
        if number > 0x10FFFF:
            raise BadJson("a string holds an escape beyond Unicode")
        return chr(number)
    return _ESCAPED.get(match[5], match[0])
