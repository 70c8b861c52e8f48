"""Llama 4, Olmo 3, LFM 2: calls as Python writes them, `[f(a=1), g(b="x")]`."""

import re
from collections.abc import Sequence

from agentrl.tokens.formats.base import ToolFormat, plain
from agentrl.tokens.formats.literals import find_close, read_keywords
from agentrl.tokens.formats.reader import Lost, Reader
from agentrl.tokens.tokenizer import Tokenizer
from agentrl.types import ToolCall

_NAME = re.compile(r"[^\W\d][\w.-]{0,255}")
_LISTS = ("<|tool_call_start|>", "<|python_start|>")
_LINES = "<function_calls>"


class Pythonic(ToolFormat):
    """A list of calls, or behind `<function_calls>` one call a line; values are literals.

    Without a marker, a list of calls at the beginning of a line counts, except where the tokenizer
    has a token for it, as that of LFM 2.
    """

    name = "pythonic"
    signs = (
        ("<|tool_call_start|>",),
        ("<|tool_list_start|>",),
        ("<|python_start|>",),
        ("<function_calls>",),
        ("[func_name1(",),
    )
    starts = (*_LISTS, _LINES)
    bare: re.Pattern[str] | None = re.compile(
        r"^[ \t]*(\[\s{0,8}[^\W\d][\w.-]{0,255}\()", re.MULTILINE
    )
    noise = ("<|tool_call_end|>", "<|python_end|>", "</function_calls>")

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        """See `ToolFormat`. A tokenizer with a token that begins calls needs no guesses."""
        super().__init__(tokenizer)
        if tokenizer and _LISTS[0] in tokenizer.added_tokens:
            self.bare = None

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        markers = (*self.starts, *self.noise)
        reader.skip_space()
        if reader.at("["):
            reader.attempt_list(lambda: read_python_call(reader), markers=markers)
            return
        while not reader.at_end and not any(map(reader.at, markers)):
            if not reader.attempt(lambda: read_python_call(reader), starts=markers):
                return
            reader.skip_space()

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return f"[{', '.join(map(_written, calls))}]"


def read_python_call(reader: Reader, *, method: str = "") -> None:
    """`NAME(KEY=VALUE, ...)`, or `NAME.call(...)` with `method`. Raises Lost, BadJson, Refused."""
    name = reader.take_match(_NAME, "a call as name(key=value)").removesuffix(method)
    if not reader.at("("):
        raise Lost("unclosed" if reader.at_end else "malformed", "expected ( after the name")
    begin, extent = reader.position, find_close(reader.text, reader.position)
    reader.position = extent.end
    if extent.fault:
        raise Lost(extent.fault, extent.reason)
    reader.add(name, read_keywords(reader.text[begin + 1 : extent.end - 1]))


def _written(call: ToolCall) -> str:
    arguments = (f"{key}={plain(value)!r}" for key, value in call.arguments.items())
    return f"{call.name}({', '.join(arguments)})"
