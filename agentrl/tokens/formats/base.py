"""`ToolFormat`: the contract of a tool-call format, and what all formats share.

What is decided here for all of them, beyond the contract:

- A marker that is a token of its own in the tokenizer counts by its id only; spelled out in other
  tokens it is text. A stop token that is a marker (`<|call|>`) is still seen.
- Thinking that is never closed takes the rest. A thinking marker inside a call's string is part of
  the string.
- Twice the same key, NaN, Infinity, numbers beyond a float and lone surrogates make a call
  malformed. Types come from the schema alone; see `schema.py`.
- After a bad call, reading goes on at the next marker behind the place where it went wrong.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import ClassVar, NoReturn

from agentrl.tokens.formats.reader import (
    Finder,
    Full,
    Lost,
    MarkedText,
    Reader,
    Refused,
    raise_error,
)
from agentrl.tokens.tokenizer import Tokenizer
from agentrl.types import AssistantTurn, CallErrorReason, Json, StopReason, ToolCall, ToolSchema


class ToolFormat:
    """How a family of models writes tool calls; stateless.

    Parsing is total (any input gives a turn, nothing is raised), linear in the length, aware of
    strings, and keeps calls and errors in the order in which they were written. A bad call never
    affects its neighbours. After a LENGTH stop the turn says so and nothing in it may run.

    Reasoning is cut off before calls are looked for. `thinking` says that the prompt ended inside
    an open thinking block; the completion is then reasoning up to the end marker. An end marker
    that nothing opened makes reasoning of all that is before it, drafted calls included.

    A format declares its markers, reads one call and writes calls.
    """

    name: ClassVar[str]
    signs: ClassVar[Sequence[Sequence[str]]] = ()
    """A chat template that holds all strings of one of these writes the format."""
    starts: ClassVar[Sequence[str]]
    """What begins a call, or a list of calls."""
    ends: ClassVar[Sequence[str]] = ()
    """What ends one; where a call went wrong, reading goes on behind it."""
    noise: ClassVar[Sequence[str]] = ()
    """Markers between the calls that say nothing."""
    opens: ClassVar[Sequence[str]] = ()
    """Begin a section in which nothing but calls may stand."""
    closes: ClassVar[Sequence[str]] = ()
    """End a section, or a list of calls; text before them is a call that lost its begin."""
    parts: ClassVar[Sequence[str]] = ()
    """Markers inside calls that stand outside only where a call lost its begin."""
    once: ClassVar[Sequence[str]] = ()
    """Those of them that each call has once: where two stand outside, two calls are lost."""
    inner: ClassVar[Sequence[str]] = ()
    """Further markers inside calls."""
    think: ClassVar[tuple[str, str]] = ("<think>", "</think>")
    title: ClassVar[str] = ""
    """What stands before the reasoning itself."""
    manner: ClassVar[str] = "write its name and its arguments in this form"

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        """Without a tokenizer only text can be parsed."""
        self._tokenizer = tokenizer

    @cached_property
    def _single_token_markers(self) -> Mapping[int, str]:
        """The markers that are tokens of their own, by their ids."""
        added: Mapping[str, int] = self._tokenizer.added_tokens if self._tokenizer else {}
        return {added[marker]: marker for marker in self.markers if marker in added}

    @property
    def markers(self) -> tuple[str, ...]:
        """All of them."""
        return (*self._call_markers, *self.ends, *self.parts, *self.inner, *self.think)

    @cached_property
    def _call_markers(self) -> tuple[str, ...]:
        return (*self.starts, *self.noise, *self.opens, *self.closes)

    @cached_property
    def _outside(self) -> tuple[str, ...]:
        return (*self._call_markers, *self.ends, *self.parts, *self.think)

    def parse(
        self,
        ids: Sequence[int],
        stop_reason: StopReason,
        tools: Sequence[ToolSchema],
        *,
        thinking: bool = False,
    ) -> AssistantTurn:
        """The turn in a completion. The stop token is the last id of a STOP."""
        if self._tokenizer is None:
            raise ValueError("a format needs a tokenizer to parse ids; use parse_text for text")
        spoken = ids
        if ids and stop_reason is StopReason.STOP:
            spoken = ids if ids[-1] in self._single_token_markers else ids[:-1]
        marked = MarkedText.from_ids(spoken, self._tokenizer, self._single_token_markers)
        return self._parse_assistant_turn(marked, stop_reason, tools, thinking)

    def parse_text(
        self,
        text: str,
        tools: Sequence[ToolSchema],
        *,
        stop_reason: StopReason = StopReason.STOP,
        thinking: bool = False,
    ) -> AssistantTurn:
        """The turn in a text without stop token; every marker written out counts."""
        return self._parse_assistant_turn(MarkedText(text), stop_reason, tools, thinking)

    def read_call(self, reader: Reader) -> None:
        """Read the call, or the calls, whose marker is just behind.

        Raises BadJson, Refused or Lost for a bad one.
        """
        raise NotImplementedError

    def find_bare(self, text: str, start: int) -> int:
        """Where the next calls begin that no marker announces; the text's length without any."""
        return len(text)

    def _parse_assistant_turn(
        self,
        marked: MarkedText,
        stop_reason: StopReason,
        tools: Sequence[ToolSchema],
        thinking: bool,
    ) -> AssistantTurn:
        reader = Reader(marked, tools, self._call_markers)
        try:
            self.read(reader, thinking)
        except Full:
            return reader.turn(stop_reason)
        return reader.turn(stop_reason)

    def read(self, reader: Reader, thinking: bool) -> None:
        """Read the whole turn; `thinking` as in `parse`. May raise Full."""
        bare = self.find_bare if reader.tools else None
        if thinking:
            reader.skip_space()
            reader.take(self.think[0])
            self._add_thinking_to_reader(reader)
        while not reader.at_end:
            self._add_text_and_marked_part_to_reader(reader, bare)
        if reader.section == len(reader.calls):
            self._add_calls_or_call_error(reader, bare, partial(_refuse_stray_text, "", ""))

    def _add_text_and_marked_part_to_reader(self, reader: Reader, bare: Finder | None) -> None:
        """Read the text up to the next marker, and what that begins."""
        begin, marker = reader.next(self._outside, bare)
        text = reader.text[reader.position : begin]
        reader.texts.append(text)
        reader.position = begin + len(marker)
        around = (*self.opens, *self.closes)
        misplaced = reader.section is not None or marker in (*self.ends, *self.closes)
        is_empty = reader.section == len(reader.calls) and marker in around
        if is_empty or (text.strip() and misplaced and marker not in self.parts):
            self._add_calls_or_call_error(reader, bare, partial(_refuse_stray_text, text, marker))
        if marker in around:
            reader.section = len(reader.calls) if marker in self.opens else None
        elif marker == self.think[0]:
            self._add_thinking_to_reader(reader)
        elif marker == self.think[1]:
            reader.all_was_thinking(begin)
        elif marker in self.parts:
            again = (marker,) if marker in self.once else ()
            lost = Lost("malformed", f"{marker} stands outside of a call")
            self._add_calls_or_call_error(reader, bare, partial(raise_error, lost), again)
        elif marker not in (*self.noise, *self.ends) and begin < len(reader.text):
            self._add_calls_or_call_error(reader, bare, partial(self.read_call, reader))

    def _add_calls_or_call_error(
        self,
        reader: Reader,
        bare: Finder | None,
        step: Callable[[], None],
        again: Sequence[str] = (),
    ) -> None:
        starts = (*self._call_markers, *again) if again else self._call_markers
        try:  # noqa: SIM105 - each turn comes by here, and a context manager is dear
            reader.attempt(step, ends=self.ends, starts=starts, bare=bare)
        except Full:
            pass
        if reader.lost is not None:
            # Thinking that ends inside a call was thinking all along.
            think_end = reader.marked.find(self.think[1], reader.lost)
            reader.position, reader.lost = min(reader.position, think_end), None

    def _add_thinking_to_reader(self, reader: Reader) -> None:
        end, marker = reader.next(self.think[1:])
        reader.thoughts.append(reader.text[reader.position : end].removeprefix(self.title))
        reader.position = end + len(marker)

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        """What to tell a model about its tools where its template does not."""
        schemas = "\n".join(to_json(tool.to_json()) for tool in tools)
        example = self.render_calls([ToolCall(name="NAME", arguments={"ARGUMENT": "VALUE"})])
        return (
            "You have tools. Each line of this list describes one as JSON:\n"
            f"<tools>\n{schemas}\n</tools>\n"
            f"To use a tool, {self.manner}:\n{example}\n"
            "You may use several tools at once, one pair of markers each. The results come back "
            "between <tool_response> and </tool_response>."
        )

    def render_reasoning(self, reasoning: str) -> str:
        """A thinking block, as a model writes it before its text."""
        return f"{self.think[0]}\n{reasoning}\n{self.think[1]}\n\n"

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """Calls as a model writes them."""
        raise NotImplementedError

    def render_results(self, results: Sequence[str]) -> str:
        """The results of one turn's calls as the text of a user message."""
        return "\n".join(f"<tool_response>\n{r}\n</tool_response>" for r in results)


def _refuse_stray_text(text: str, marker: str) -> NoReturn:
    reason = CallErrorReason.MALFORMED if marker else CallErrorReason.UNCLOSED
    where = f"before {marker}" if marker else "at the end"
    got = f"the text {text.strip()[:60]!r}" if text.strip() else "none"
    raise Refused(reason, f"expected a call {where}, got {got}")


def to_json(value: Json) -> str:
    """The value as JSON, UTF-8 kept."""
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: Json) -> Json:
    """The value in the containers that the JSON writer knows."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
