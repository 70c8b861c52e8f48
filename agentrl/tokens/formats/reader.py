"""`Reader`: one pass over a turn, from left to right; what the grammars of all formats share."""

import difflib
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn, TypeVar

from agentrl.tokens.formats.literals import find_item_end
from agentrl.tokens.formats.scan import (
    BadJson,
    Extent,
    Fault,
    JsonText,
    find_end,
    find_listed_end,
    read,
)
from agentrl.tokens.formats.schema import SchemaMismatch, fit, from_text, type_name
from agentrl.tokens.tokenizer import Tokenizer
from agentrl.types import (
    AssistantTurn,
    CallError,
    CallErrorReason,
    Json,
    StopReason,
    ToolCall,
    ToolSchema,
)

MAX_CALLS = 64

_MALFORMED = CallErrorReason.MALFORMED
_SPACE = " \t\r\n"
_NEXT_ELEMENT = re.compile(
    r"\s{0,16},?\s{0,16}\[(?=\s{0,16}(?:\{|[^\W\d][\w.-]{0,255}\())|\s{0,16},\s{0,16}(?=[{\[])"
)
"""Behind a list: the begin of another one, or an element that it does not hold."""
_MORE = re.compile(r"\s{0,16},?\s{0,16}")
T = TypeVar("T")
Finder = Callable[[str, int], int]
"""Where in a text, at or behind a place, something begins; the text's length if it is not there."""


class Refused(Exception):
    """A call that was read to its end and cannot be made."""

    def __init__(self, reason: CallErrorReason, message: str, name: str | None = None) -> None:
        super().__init__(message)
        self.reason, self.name = reason, name


class Lost(Exception):
    """The end of a call was not found; the reader stands where it went wrong."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault: Fault = fault


class Full(Exception):
    """The turn has too many calls; nothing more is read."""


class MarkedText:
    """A turn's text; positions mostly move forward, so all searches together are linear."""

    def __init__(self, text: str, places: Mapping[str, Sequence[int]] | None = None) -> None:
        """`places` gives the sorted positions of markers that count only there."""
        self.text = text
        self._places = places or {}
        self._last: dict[str | Finder, tuple[int, int]] = {}

    @classmethod
    def from_ids(
        cls, ids: Sequence[int], tokenizer: Tokenizer, single: Mapping[int, str]
    ) -> "MarkedText":
        """The decoded ids; the markers in `single` are tokens, so they are found by id only."""
        places: dict[str, list[int]] = {marker: [] for marker in single.values()}
        if single.keys().isdisjoint(ids):
            return cls(tokenizer.decode(ids), places)
        pieces: list[str] = []
        length, begin = 0, 0
        for index in [i for i, number in enumerate(ids) if number in single]:
            marker = single[ids[index]]
            pieces.append(tokenizer.decode(ids[begin:index]))
            length += len(pieces[-1])
            places[marker].append(length)
            pieces.append(marker)
            length += len(marker)
            begin = index + 1
        pieces.append(tokenizer.decode(ids[begin:]))
        return cls("".join(pieces), places)

    def find(self, marker: str, start: int) -> int:
        """The next position of `marker` at or after `start`; the text's length if there is none."""
        if marker in self._places:
            places = self._places[marker]
            index = bisect_left(places, start)
            return places[index] if index < len(places) else len(self.text)
        since, found = self._last.get(marker, (0, -1))
        if not since <= start <= found:
            found = self.text.find(marker, start)
            found = len(self.text) if found < 0 else found
            self._last[marker] = (start, found)
        return found

    def find_by(self, finder: Finder, start: int) -> int:
        """The same for what has no id."""
        since, found = self._last.get(finder, (0, -1))
        if not since <= start <= found:
            found = finder(self.text, start)
            self._last[finder] = (start, found)
        return found


class Reader:
    """Where a parser stands in a turn, and what it has found there."""

    def __init__(
        self, marked: MarkedText, tools: Sequence[ToolSchema], stops: Sequence[str]
    ) -> None:
        self.marked, self.text, self.tools = marked, marked.text, tools
        self.stops = stops
        """Markers that stand between calls."""
        self.section: int | None = None
        """Where only calls may stand: how many were found before."""
        self.position = 0
        self._losses = 0
        """Calls whose end was not found, drafts in thinking among them."""
        self.lost: int | None = None
        """Where the last call begins whose end was not found."""
        self._thought = 0
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall | CallError] = []

    def turn(self, stop_reason: StopReason) -> AssistantTurn:
        """What was found."""
        thoughts = map(str.strip, (self.text[: self._thought], *self.thoughts))
        return AssistantTurn(
            text="".join(self.texts).strip(),
            reasoning="\n\n".join(filter(None, thoughts)),
            calls=tuple(self.calls),
            stop_reason=stop_reason,
        )

    def all_was_thinking(self, end: int) -> None:
        """Thinking ends at `end` that nothing opened: all before it was thinking."""
        self._thought, self.section = end, None
        self.texts, self.thoughts, self.calls = [], [], []

    @property
    def at_end(self) -> bool:
        """True behind the last character."""
        return self.position >= len(self.text)

    def next(self, markers: Sequence[str], bare: Finder | None = None) -> tuple[int, str]:
        """The nearest of the markers and its place.

        That is "" where `bare` is nearer, and at the end of the text if there is nothing.
        """
        begin = self.marked.find_by(bare, self.position) if bare else len(self.text)
        found = begin, ""
        for marker in markers:
            place = self.marked.find(marker, self.position)
            found = (place, marker) if place < found[0] else found
        return found

    def skip_space(self) -> None:
        """Move behind white space."""
        while self.position < len(self.text) and self.text[self.position] in _SPACE:
            self.position += 1

    def at(self, marker: str) -> bool:
        """True if `marker` is here."""
        here = self.text.startswith(marker, self.position)
        return here and self.marked.find(marker, self.position) == self.position

    def take(self, marker: str) -> bool:
        """Move behind `marker` if it is here."""
        here = self.at(marker)
        self.position += len(marker) if here else 0
        return here

    def expect(self, marker: str, where: str) -> None:
        """Move behind `marker`. Raises Lost if it is not here."""
        if not self.take(marker):
            raise Lost("malformed", f"expected {marker} {where}")

    def take_until(self, marker: str, what: str, limit: int = 256) -> str:
        """The text before `marker`, at most `limit` characters; moves behind it. Raises Lost."""
        begin, end = self.position, self.marked.find(marker, self.position)
        if end == len(self.text) or end - begin > limit:
            raise Lost("malformed", f"expected {what}, then {marker.strip()}")
        self.position = end + len(marker)
        return self.text[begin:end]

    def take_match(self, pattern: re.Pattern[str], what: str) -> str:
        """What `pattern` matches here; moves behind it. Raises Lost if that is nothing."""
        match = pattern.match(self.text, self.position)
        if not match:
            raise Lost("malformed", f"expected {what}")
        self.position = match.end()
        return match[0]

    def take_json(self) -> JsonText:
        """The JSON object that begins here, not yet read. Raises Lost."""
        if not self.text.startswith("{", self.position):
            raise Lost("malformed", "expected a JSON object after the marker")
        return self._take_json_of_extent(find_end(self.text, self.position))

    def take_listed(self) -> JsonText:
        """The same for an element of a list. Raises Refused for one whose end is known."""
        begin = self.position
        found = self._take_json_of_extent(
            find_listed_end(self.text, begin, self._is_stop_marker_at)
        )
        if not found.text.startswith("{"):
            self.refuse_element(begin, "a JSON object")
        return found

    def _take_json_of_extent(self, extent: Extent) -> JsonText:
        begin, self.position = self.position, extent.end
        if extent.fault and extent.closed:
            raise Refused(CallErrorReason(extent.fault), extent.reason)
        if extent.fault:
            raise Lost(extent.fault, extent.reason)
        return JsonText(self.text[begin : extent.end], extent.value)

    def refuse_item(self, until: str) -> NoReturn:
        """Move behind what is no call, up to one of `until`. Raises Refused, or Lost."""
        begin, extent = (
            self.position,
            find_item_end(self.text, self.position, until, self._is_stop_marker_at),
        )
        self._take_json_of_extent(extent)
        self.position = max(self.position, begin + 1)
        self.refuse_element(begin, "name(key=value)")

    def refuse_element(self, begin: int, what: str) -> NoReturn:
        """Raise Refused for the element from `begin` to here, which is not `what`."""
        end = min(self.position, begin + 40)
        raise Refused(_MALFORMED, f"a call is {what}, got {self.text[begin:end].strip()!r}")

    @property
    def at_stop(self) -> bool:
        """True at the end of the text, and at a marker that stands between calls."""
        return self.at_end or self._is_stop_marker_at(self.position)

    def _is_stop_marker_at(self, place: int) -> bool:
        return any(
            self.text.startswith(marker, place) and self.marked.find(marker, place) == place
            for marker in self.stops
        )

    def attempt(
        self,
        step: Callable[[], None],
        *,
        ends: Sequence[str] = (),
        starts: Sequence[str] = (),
        bare: Finder | None = None,
    ) -> bool:
        """Read one call. A bad one becomes an error. False if its end was not found.

        Then reading goes on behind the next of `ends` or before the next of `starts` or `bare`,
        whichever comes first. Raises Full beyond the cap on calls.
        """
        if max(len(self.calls), self._losses) >= MAX_CALLS:
            message = f"more than {MAX_CALLS} calls in one turn; the rest was not read"
            self._add_call_error(CallErrorReason.TOO_MANY, message)
            self.lost, self.position = self.position, len(self.text)
            raise Full
        begin, num_calls = self.position, len(self.calls)
        try:
            step()
            if len(self.calls) == num_calls:
                is_cut = self.at_end and not self.text[begin:].strip()
                reason = CallErrorReason.UNCLOSED if is_cut else _MALFORMED
                raise Refused(reason, "expected a call here, got none")
        except BadJson as error:
            self._add_call_error(
                CallErrorReason(error.fault), f"the call is not valid JSON: {error}"
            )
        except Refused as refused:
            self._add_call_error(refused.reason, str(refused), refused.name)
        except Lost as lost:
            end, marker = self.next(ends)
            start, _ = self.next(starts, bare)
            reason, message = CallErrorReason(lost.fault), str(lost)
            if end < start:
                self.position = end + len(marker)
            else:
                self.position = start
                if lost.fault == "malformed" and (ends or self.at_end):
                    reason = CallErrorReason.UNCLOSED
                    message = f"the call has no {ends[0]}" if ends else message
            self._add_call_error(reason, message)
            self.lost, self._losses = begin, self._losses + 1
            return False
        return True

    def attempt_list(self, read_one: Callable[[], None]) -> None:
        """Read a list whose elements are calls; each becomes a call or an error.

        A comma that is missing is not missed. A marker ends the list wherever one went wrong.
        """
        self.expect("[", "before the calls")
        self.skip_space()
        while True:
            if self.take("]"):
                # Another element may follow, where the list was closed too early.
                match = _NEXT_ELEMENT.match(self.text, self.position)
                if match is None:
                    return
                self.position = match.end()
            if self.at_stop:
                raise Lost("unclosed" if self.at_end else "malformed", "the list has no ]")
            if not self.attempt(read_one, starts=self.stops):
                return
            self.skip_space()
            self.take(",")
            self.skip_space()

    def take_only(self, take: Callable[[], T], begin: str, ends: Sequence[str]) -> T:
        """What `take` reads, up to one of `ends`; if several begin with `begin`, each is an error.

        Raises Lost, or Refused for the last of several.
        """
        found, refused = take(), Refused(_MALFORMED, f"several calls stand before one {ends[0]}")
        alone = True
        while self._skip_to_next_call_in_list(begin):
            self.attempt(partial(raise_error, refused))
            found, alone = take(), False
        self.skip_space()
        if not any(map(self.take, ends)):
            raise Lost("malformed", f"expected {ends[0]} behind the call")
        if not alone:
            raise refused
        return found

    def _skip_to_next_call_in_list(self, begin: str) -> bool:
        """True, at it, if `begin` is next, with a comma or none."""
        match = _MORE.match(self.text, self.position)
        place = match.end() if match else self.position
        here = self.text.startswith(begin, place)
        self.position = place if here else self.position
        return here

    def _add_call_error(
        self, reason: CallErrorReason, message: str, name: str | None = None
    ) -> None:
        number = f"call_{len(self.calls)}"
        self.calls.append(CallError(reason=reason, message=message, name=name, id=number))

    def add(self, name: str, arguments: Json) -> None:
        """A call of `name` with `arguments` as the model wrote them. Raises Refused."""
        schema = self._require_schema_of_tool(name)
        if isinstance(arguments, str):
            arguments = _parse_arguments_or_keep_text(arguments, name)
        if not isinstance(arguments, dict | Mapping):
            message = f'{name}: "arguments" is {type_name(arguments)}, expected a JSON object'
            raise Refused(_MALFORMED, message, name)
        try:
            fitted = fit(arguments, schema.parameters)
        except SchemaMismatch as mismatch:
            message = f"{name}: {mismatch}"
            raise Refused(CallErrorReason.BAD_ARGUMENTS, message, name) from mismatch
        arguments = fitted if isinstance(fitted, dict) else {}
        self.calls.append(ToolCall(name=name, arguments=arguments, id=f"call_{len(self.calls)}"))

    def add_texts(self, name: str, texts: Mapping[str, str]) -> None:
        """The same where each argument is a text, read by its type in the schema."""
        try:
            arguments = from_text(texts, self._require_schema_of_tool(name).parameters)
        except SchemaMismatch as mismatch:
            message = f"{name}: {mismatch}"
            raise Refused(CallErrorReason.BAD_ARGUMENTS, message, name) from mismatch
        self.add(name, arguments)

    def add_object(
        self,
        found: JsonText,
        *,
        name_key: str = "name",
        arguments_keys: Sequence[str] = ("arguments",),
        ignored: Sequence[str] = (),
    ) -> None:
        """The same for a JSON object that holds name and arguments. Raises BadJson or Refused."""
        value = read(found)
        if not isinstance(value, dict):
            raise Refused(_MALFORMED, f"a call is a JSON object, got {type_name(value)}")
        name = value.get(name_key)
        if not isinstance(name, str) or not name:
            message = f'the call has no "{name_key}"; write the tool\'s name as a string'
            raise Refused(_MALFORMED, message)
        used = [key for key in arguments_keys if key in value]
        extra = [k for k in value if k not in (name_key, *used[:1], *ignored)]
        if extra:
            message = (
                f'the call has the key {extra[0][:60]!r}; use "{name_key}" '
                f'and "{arguments_keys[0]}"'
            )
            raise Refused(_MALFORMED, message, name)
        self.add(name, value[used[0]] if used else {})

    def _require_schema_of_tool(self, name: str) -> ToolSchema:
        for tool in self.tools:
            if tool.name == name:
                return tool
        raise Refused(CallErrorReason.UNKNOWN_TOOL, _explain_unknown_tool(name, self.tools), name)


def raise_error(error: Refused | Lost) -> NoReturn:
    """A step for `Reader.attempt` that fails."""
    raise error


def _parse_arguments_or_keep_text(text: str, name: str) -> Json:
    text = text.strip()
    extent = find_end(text, 0)
    if not text.startswith("{") or extent.fault or extent.end != len(text):
        return text
    try:
        return read(JsonText(text, extent.value))
    except BadJson as error:
        message = f'{name}: "arguments" is a string that holds no valid JSON: {error}'
        raise Refused(_MALFORMED, message, name) from error


def _explain_unknown_tool(name: str, tools: Sequence[ToolSchema]) -> str:
    names = [tool.name for tool in tools]
    near = difflib.get_close_matches(name[:100], names, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    known = f"the tools are {', '.join(names)}" if names else "there are no tools"
    return f"there is no tool {name[:100]!r}{hint}; {known}"
