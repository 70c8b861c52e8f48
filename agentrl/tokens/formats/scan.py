"""Finds the end of a JSON value in model output: linear, without recursion, aware of strings."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agentrl.types import Json

MAX_DEPTH = 64
MAX_CHARS = 262_144

_STRUCTURE = re.compile(r'[<;]|\[[A-Z]|["{}\[\]]')
_LISTED = re.compile(r'[<"{}\[\]]')
_WORD = re.compile(r'.[^,;<"{}\[\]]*', re.DOTALL)
_IN_STRING = re.compile(r'["\\\x00-\x1f]')
_IN_LISTED_STRING = re.compile(r'["\\]')
_OPEN, _CLOSE = "{[", "}]"
_OPENER = dict(zip(_CLOSE, _OPEN, strict=True))

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"

Fault = Literal["malformed", "unclosed", "too_large"]


class Extent(NamedTuple):
    """Where a value ends, or where and why the scan gave up."""

    end: int
    fault: Fault | None = None
    reason: str = ""
    closed: bool = False
    """With a fault: `end` is the end of the value all the same."""
    value: Json = None
    """What was read on the way, if no fault was met."""


class JsonText(NamedTuple):
    """The text of one JSON value, and the value where it was read on the way to its end."""

    text: str
    value: Json = None


class BadJson(ValueError):
    """Text that is not one plain value."""

    def __init__(self, message: str, fault: Fault = "malformed") -> None:
        super().__init__(message)
        self.fault: Fault = fault


def find_end(text: str, start: int) -> Extent:
    """The end of the object or array that begins at `start`.

    Brackets are counted, not matched: `read` does that. Outside strings `<`, `;` and `[A` cannot be
    JSON; they end the scan, so that a value that was never closed does not swallow the calls after
    it.
    """
    if plain := _read_faultless_json_value(text, start):
        return plain
    depth, deepest, position, limit = 0, 0, start, start + MAX_CHARS
    while found := _STRUCTURE.search(text, position, limit):
        position = found.end()
        character = found[0]
        if character[0] in "<;" or len(character) > 1:
            return Extent(found.start(), "malformed", "the JSON is not complete")
        if character == '"':
            closed = _find_string_end(text, position, limit, _IN_STRING)
            if closed.fault:
                return closed
            position = closed.end
        depth += (character in _OPEN) - (character in _CLOSE)
        deepest = max(depth, deepest)
        if deepest > MAX_DEPTH:
            return Extent(position, "too_large", _TOO_DEEP)
        if depth == 0:
            return Extent(position)
    return cut_off(text, limit)


def find_listed_end(text: str, start: int, is_marker: Callable[[int], bool]) -> Extent:
    """The end of the element of a list that begins at `start`, whatever it is.

    In a list nothing marks the next call, so an element is followed to its end however deep it is
    and whatever its strings hold, and a fault is told with that end. A bracket left open ends with
    the one around it; a bracket that the element did not open, or a marker, ends the element.
    """
    if text[start] not in _OPEN:
        if text[start] == '"':
            return _find_string_end(text, start + 1, start + MAX_CHARS, _IN_LISTED_STRING)
        word = _WORD.match(text, start)
        return Extent(word.end() if word else start)
    if plain := _read_faultless_json_value(text, start):
        return plain
    opened, position, limit = _Brackets(), start, start + MAX_CHARS
    while found := _LISTED.search(text, position, limit):
        position, character = found.end(), found[0]
        if character in "<[" and is_marker(found.start()):
            return Extent(found.start(), "malformed", "the JSON is not complete")
        if character == '"':
            closed = _find_string_end(text, position, limit, _IN_LISTED_STRING)
            if closed.fault:
                return closed
            position = closed.end
        elif not opened.follow(character):
            return Extent(found.start(), "malformed", "the JSON is not complete", closed=True)
        if not opened.open:
            deep = opened.deepest > MAX_DEPTH
            return Extent(position, "too_large", _TOO_DEEP, True) if deep else Extent(position)
    return cut_off(text, limit)


@dataclass(slots=True)
class _Brackets:
    """The brackets that are open."""

    open: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    deepest: int = 0

    def follow(self, character: str) -> bool:
        """Note a character. False for the end of what was not opened."""
        if character in _OPEN:
            self.open.append(character)
            self.counts[character] += 1
            self.deepest = max(self.deepest, len(self.open))
        elif character in _CLOSE:
            opener = _OPENER[character]
            if not self.counts[opener]:
                return False
            # It closes the innermost of its kind, and what is open inside it.
            while (inner := self.open.pop()) != opener:
                self.counts[inner] -= 1
            self.counts[opener] -= 1
        return True


def _read_faultless_json_value(text: str, start: int) -> Extent | None:
    """A value without any fault, read by the JSON reader itself; None for others."""
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    brackets = text.count("{", start, end) + text.count("[", start, end)
    if end - start > MAX_CHARS or brackets > MAX_DEPTH:
        return None
    return Extent(end, value=value)


def _find_string_end(text: str, position: int, limit: int, pattern: re.Pattern[str]) -> Extent:
    """The end of the string whose first quote is just before `position`."""
    while found := pattern.search(text, position, limit):
        if found[0] == '"':
            return Extent(found.end())
        if found[0] != "\\":
            return Extent(found.start(), "malformed", "a string holds a raw control character")
        position = found.end() + 1
    return cut_off(text, limit)


def cut_off(text: str, limit: int, inside: str = "JSON") -> Extent:
    """What is said of a value without an end."""
    if len(text) > limit:
        return Extent(limit, "too_large", f"longer than {MAX_CHARS} characters")
    return Extent(len(text), "unclosed", f"the output ended inside the {inside}")


def read(found: JsonText) -> Json:
    """The value of one JSON text whose depth was checked.

    Raises BadJson for what JSON does not allow or leaves open: a key given twice, NaN, Infinity,
    numbers too large for a float, lone surrogates.
    """
    text, value = found.text, found.value
    try:
        if value is None:
            value = _STRICT.decode(text)
        if "\\u" in text or not text.isascii():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadJson("a string holds half of a surrogate pair") from error
    except json.JSONDecodeError as error:
        raise BadJson(f"{error.msg} at character {error.pos}") from error
    except ValueError as error:  # an integer with more digits than Python converts
        raise BadJson(str(error).partition(";")[0]) from error
    return value


def read_value(text: str) -> Json:
    """The value of any JSON text, also a bare number, string or word. Raises BadJson."""
    text = text.strip(" \t\r\n")
    if text[:1] in ("{", "["):
        extent = find_end(text, 0)
        if extent.fault or extent.end != len(text):
            reason = extent.reason or "there is text behind the JSON"
            raise BadJson(reason, extent.fault or "malformed")
    return read(JsonText(text))


def _build_unique_dict(pairs: Sequence[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is given twice")
    return value


def _refuse_nan_or_inf(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _parse_finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


_STRICT = json.JSONDecoder(
    object_pairs_hook=_build_unique_dict,
    parse_constant=_refuse_nan_or_inf,
    parse_float=_parse_finite_float,
)
