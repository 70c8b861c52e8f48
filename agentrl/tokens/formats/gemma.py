"""FunctionGemma and Gemma 4: `call:NAME{KEY:VALUE}` between markers, strings between tokens."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.reader import Lost, Reader, Refused
from agentrl.tokens.formats.scan import MAX_CHARS, MAX_DEPTH, BadJson, JsonText, read
from agentrl.types import CallErrorReason, Json, ToolCall

CALL, CALL_END = "<|tool_call>", "<tool_call|>"
_SPELLINGS = {
    CALL: (CALL_END, '<|"|>'),
    "<start_function_call>": ("<end_function_call>", "<escape>"),
}
_QUOTES = tuple(quote for _, quote in _SPELLINGS.values())
_NAME = re.compile(r"call:[^{}<>\n]{1,256}")
_KEY = re.compile(r"[^:,{}\[\]<>]{1,256}")
_WORD = re.compile(r"[^,{}\[\]<>:]{1,512}")


class Gemma(ToolFormat):
    """Strings have no escapes: they end at the next quote token."""

    name = "gemma"
    signs = tuple((marker,) for marker in _SPELLINGS)
    starts = tuple(_SPELLINGS)
    ends = tuple(end for end, _ in _SPELLINGS.values())
    inner = _QUOTES
    think = ("<|channel>", "<channel|>")
    title = "thought"

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        begin, values = reader.position, _Values(reader)
        reader.skip_space()
        name, arguments = reader.take_only(values.read_call, "call:", self.ends)
        if reader.position - begin > MAX_CHARS:
            message = f"longer than {MAX_CHARS} characters"
            raise Refused(CallErrorReason.TOO_LARGE, message, name)
        if values.twice is not None:
            raise BadJson(f"the key {values.twice[:60]!r} is given twice")
        reader.add(name, arguments)

    def render_reasoning(self, reasoning: str) -> str:
        """See `ToolFormat.render_reasoning`."""
        return f"{self.think[0]}{self.title}\n{reasoning}\n{self.think[1]}"

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return "".join(f"{CALL}call:{c.name}{_render_value(c.arguments)}{CALL_END}" for c in calls)


@dataclass(slots=True)
class _Values:
    reader: Reader
    twice: str | None = None
    """A key that is given twice."""

    def read_call(self) -> tuple[str, Json]:
        """The name and the arguments of the call that begins here. Raises Lost."""
        name = self.reader.take_match(_NAME, "call: and the tool's name")
        return name.removeprefix("call:").strip(), self.read(1)

    def read(self, depth: int) -> Json:
        """The value that begins here. Raises Lost."""
        reader = self.reader
        if depth > MAX_DEPTH:
            raise Lost("too_large", f"nested deeper than {MAX_DEPTH} levels")
        reader.skip_space()
        if reader.take("{"):
            return self._read_gemma_mapping(depth)
        if reader.take("["):
            items: list[Json] = []
            while not self._take_closing_bracket("]"):
                items.append(self.read(depth + 1))
                self._expect_comma_or_bracket("]")
            return items
        text = self._read_quoted_string()
        if text is not None:
            return text
        word = reader.take_match(_WORD, "a value").strip()
        try:
            return None if word == "None" else read(JsonText(word))
        except BadJson as error:
            message = f"the value {word[:40]!r} is no number and no string"
            raise Lost("malformed", message) from error

    def _read_gemma_mapping(self, depth: int) -> Json:
        found: dict[str, Json] = {}
        while not self._take_closing_bracket("}"):
            key = self._read_quoted_string()
            key = self.reader.take_match(_KEY, "a key").strip() if key is None else key
            self.reader.skip_space()
            self.reader.expect(":", "behind a key")
            self.twice = key if key in found else self.twice
            found[key] = self.read(depth + 1)
            self._expect_comma_or_bracket("}")
        return found

    def _read_quoted_string(self) -> str | None:
        reader = self.reader
        quote = next(filter(reader.take, _QUOTES), None)
        if quote is None:
            return None
        begin, (end, found) = reader.position, reader.next((quote,))
        if not found:
            raise Lost("unclosed", f"a string has no {quote} at its end")
        reader.position = end + len(quote)
        return reader.text[begin:end]

    def _take_closing_bracket(self, bracket: str) -> bool:
        self.reader.skip_space()
        return self.reader.take(bracket)

    def _expect_comma_or_bracket(self, bracket: str) -> None:
        self.reader.skip_space()
        if not self.reader.take(",") and not self.reader.at(bracket):
            raise Lost("malformed", f"expected , or {bracket} behind a value")


def _render_value(value: Json) -> str:
    """A value as the chat template writes it."""
    if isinstance(value, str):
        return f"{_QUOTES[0]}{value}{_QUOTES[0]}"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_render_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, Sequence):
        return f"[{','.join(map(_render_value, value))}]"
    return to_json(value)
