"""The Hermes format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number a turn.

What is decided here, beyond the contract in `protocol.py`:

- The markers are `<tool_call>`, `</tool_call>`, `<think>` and `</think>`. One that is a token of
  its own in the tokenizer counts by its id only; spelled out in other tokens it is text.
- Thinking is cut off first: a call inside it does not run. Thinking that is never closed takes the
  rest. `<think>` inside a call's string is part of the string.
- A call is one JSON object with `name` and `arguments` and nothing else. Arguments left out are no
  arguments. Arguments written as a JSON string count if the string holds an object.
- Twice the same key, NaN, Infinity, numbers beyond a float, lone surrogates and raw line breaks in
  strings make a call malformed.
- Types come from the schema alone; see `schema.py`.
- After a bad call, parsing goes on at the next marker behind the place where it went wrong.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.tokens.formats.markers import MarkedText
from agentrl.tokens.formats.scan import BadJson, find_end, read
from agentrl.tokens.formats.schema import SchemaMismatch, fit, type_name
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

CALL, CALL_END = "<tool_call>", "</tool_call>"
THINK, THINK_END = "<think>", "</think>"
_MARKERS = (CALL, CALL_END, THINK, THINK_END)


class Hermes:
    """Parser and writer of the format; stateless."""

    name = "hermes"

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        """Without a tokenizer only text can be parsed: then `parse` ignores the ids."""
        self._tokenizer = tokenizer

    def parse(
        self, ids: Sequence[int], text: str, stop_reason: StopReason, tools: Sequence[ToolSchema]
    ) -> AssistantTurn:
        """See `ToolFormat.parse`. The stop token is the last id of a STOP."""
        if self._tokenizer is None:
            return self.parse_text(text, tools, stop_reason=stop_reason)
        spoken = ids[:-1] if stop_reason is StopReason.STOP else ids
        marked = MarkedText.from_ids(spoken, self._tokenizer, _MARKERS)
        return _Parse(marked, tools).turn(stop_reason)

    def parse_text(
        self,
        text: str,
        tools: Sequence[ToolSchema],
        *,
        stop_reason: StopReason = StopReason.STOP,
    ) -> AssistantTurn:
        """See `ToolFormat.parse_text`."""
        return _Parse(MarkedText(text), tools).turn(stop_reason)

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        """See `ToolFormat.instructions`."""
        schemas = "\n".join(json.dumps(_plain(t.to_json()), ensure_ascii=False) for t in tools)
        example = '{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}'
        return (
            "You have tools. Each line of this list describes one as JSON:\n"
            f"<tools>\n{schemas}\n</tools>\n"
            "To use a tool, write its name and its arguments as a JSON object between these "
            f"markers:\n{CALL}\n{example}\n{CALL_END}\n"
            "You may use several tools at once, one pair of markers each. The results come back "
            "between <tool_response> and </tool_response>."
        )

    def render_reasoning(self, reasoning: str) -> str:
        """See `ToolFormat.render_reasoning`."""
        return f"{THINK}\n{reasoning}\n{THINK_END}\n\n"

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return "\n".join(f"{CALL}\n{_call_json(call)}\n{CALL_END}" for call in calls)

    def render_results(self, results: Sequence[str]) -> str:
        """See `ToolFormat.render_results`."""
        return "\n".join(f"<tool_response>\n{r}\n</tool_response>" for r in results)


def _call_json(call: ToolCall) -> str:
    value = {"name": call.name, "arguments": _plain(call.arguments)}
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Json) -> Json:
    """The value in the containers that the JSON writer knows."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


class _Refused(Exception):
    def __init__(self, reason: CallErrorReason, message: str, name: str | None = None) -> None:
        super().__init__(message)
        self.reason, self.name = reason, name


@dataclass(slots=True)
class _Parse:
    """One pass over a turn, from left to right."""

    marked: MarkedText
    tools: Sequence[ToolSchema]
    position: int = 0
    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[ToolCall | CallError] = field(default_factory=list[ToolCall | CallError])

    def turn(self, stop_reason: StopReason) -> AssistantTurn:
        text = self.marked.text
        while self.position < len(text):
            call, think = (
                self.marked.find(CALL, self.position),
                self.marked.find(THINK, self.position),
            )
            begin = min(call, think)
            self.texts.append(text[self.position : begin])
            self.position = begin
            if begin == len(text):
                break
            if think < call:
                self._think()
            else:
                self._call()
        return AssistantTurn(
            text="".join(self.texts).strip(),
            reasoning="\n\n".join(thought.strip() for thought in self.thoughts),
            calls=tuple(self.calls),
            stop_reason=stop_reason,
        )

    def _think(self) -> None:
        begin = self.position + len(THINK)
        end = self.marked.find(THINK_END, begin)
        self.thoughts.append(self.marked.text[begin:end])
        self.position = min(end + len(THINK_END), len(self.marked.text))

    def _call(self) -> None:
        number = f"call_{len(self.calls)}"
        begin = self.position + len(CALL)
        try:
            if len(self.calls) >= MAX_CALLS:
                self.position = len(self.marked.text)
                raise _Refused(
                    CallErrorReason.TOO_MANY,
                    f"more than {MAX_CALLS} calls in one turn; the rest was not read",
                )
            value = read(self._object(begin))
            self.calls.append(_to_call(value, self.tools, number))
        except BadJson as error:
            self._refuse(CallErrorReason.MALFORMED, f"the call is not valid JSON: {error}", number)
        except _Refused as refused:
            self._refuse(refused.reason, str(refused), number, refused.name)

    def _refuse(
        self, reason: CallErrorReason, message: str, number: str, name: str | None = None
    ) -> None:
        self.calls.append(CallError(reason=reason, message=message, name=name, id=number))

    def _object(self, begin: int) -> str:
        """The JSON object between the markers; afterwards `position` is behind the call."""
        text = self.marked.text
        begin = _skip_space(text, begin)
        if not text.startswith("{", begin):
            self._recover(begin, "malformed", "expected a JSON object after the marker")
        extent = find_end(text, begin)
        if extent.fault:
            self._recover(extent.end, extent.fault, extent.reason)
        end = _skip_space(text, extent.end)
        if self.marked.find(CALL_END, end) != end or end == len(text):
            self._recover(end, "malformed", f"expected {CALL_END} after the JSON object")
        self.position = end + len(CALL_END)
        return text[begin : extent.end]

    def _recover(self, wrong: int, fault: str, message: str) -> None:
        """Skip to the marker behind `wrong` and refuse the call."""
        length = len(self.marked.text)
        end, call = self.marked.find(CALL_END, wrong), self.marked.find(CALL, wrong)
        if end < call:
            self.position = end + len(CALL_END)
        else:
            self.position = call
            if fault == "malformed":
                fault, message = "unclosed", f"the call has no {CALL_END}"
        self.position = min(self.position, length)
        raise _Refused(CallErrorReason(fault), message)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _to_call(value: Json, tools: Sequence[ToolSchema], number: str) -> ToolCall:
    malformed = CallErrorReason.MALFORMED
    if not isinstance(value, Mapping):
        raise _Refused(malformed, f"a call is a JSON object, got {type_name(value)}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise _Refused(malformed, 'the call has no "name"; write the tool\'s name as a string')
    extra = [key for key in value if key not in ("name", "arguments")]
    if extra:
        raise _Refused(
            malformed, f'the call has the key {extra[0][:60]!r}; use "name" and "arguments"', name
        )
    schema = next((tool for tool in tools if tool.name == name), None)
    if schema is None:
        raise _Refused(CallErrorReason.UNKNOWN_TOOL, _unknown(name, tools), name)
    arguments = _arguments(value.get("arguments", {}), name)
    try:
        fitted = fit(arguments, schema.parameters)
    except SchemaMismatch as mismatch:
        raise _Refused(CallErrorReason.BAD_ARGUMENTS, f"{name}: {mismatch}", name) from mismatch
    return ToolCall(name=name, arguments=fitted if isinstance(fitted, dict) else {}, id=number)


def _arguments(value: Json, name: str) -> Mapping[str, Json]:
    if isinstance(value, str):
        value = _arguments_in_string(value, name)
    if isinstance(value, Mapping):
        return value
    raise _Refused(
        CallErrorReason.MALFORMED,
        f'{name}: "arguments" is {type_name(value)}, expected a JSON object',
        name,
    )


def _arguments_in_string(text: str, name: str) -> Json:
    text = text.strip()
    extent = find_end(text, 0)
    if not text.startswith("{") or extent.fault or extent.end != len(text):
        return text
    try:
        return read(text)
    except BadJson as error:
        message = f'{name}: "arguments" is a string that holds no valid JSON: {error}'
        raise _Refused(CallErrorReason.MALFORMED, message, name) from error


def _unknown(name: str, tools: Sequence[ToolSchema]) -> str:
    names = [tool.name for tool in tools]
    near = difflib.get_close_matches(name[:100], names, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    known = f"the tools are {', '.join(names)}" if names else "there are no tools"
    return f"there is no tool {name[:100]!r}{hint}; {known}"
