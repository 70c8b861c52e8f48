"""Llama 4, Olmo 3, LFM 2: calls as Python writes them, `[f(a=1), g(b="x")]`."""

import re
from collections.abc import Sequence
from functools import partial

from agentrl.tokens.formats.base import ToolFormat, plain
from agentrl.tokens.formats.lists import find_elements
from agentrl.tokens.formats.literals import find_close, read_keywords
from agentrl.tokens.formats.reader import Lost, Reader
from agentrl.tokens.tokenizer import Tokenizer
from agentrl.types import ToolCall

_HEAD = re.compile(r"([^\W\d][\w.-]{0,255})\(")
_CALL = r"[^\W\d][\w.-]{0,255}\("
_SURE_CALL = re.compile(rf"{_CALL}(?:\s{{0,8}}[^\W\d]\w{{0,255}}\s{{0,8}}=|\s{{0,8}}\))")
_BEGIN = re.compile(rf"^[ \t]*(\[)(\s{{0,8}}{_CALL})?", re.MULTILINE)
_LISTS = ("<|tool_call_start|>", "<|python_start|>")
_LINES = "<function_calls>"


class Pythonic(ToolFormat):
    """A list of calls, or behind `<function_calls>` one call a line; values are literals.

    Without a marker, a list at the beginning of a line counts if it begins with a call, or if one
    is an element of it or of a list in it, except where the tokenizer has a token for lists, as
    that of LFM 2.
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
    closes = ("<|tool_call_end|>", "<|python_end|>", "</function_calls>")

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        """See `ToolFormat`. A tokenizer with a token that begins calls needs no guesses."""
        super().__init__(tokenizer)
        self._guesses = not (tokenizer and _LISTS[0] in tokenizer.added_tokens)

    def find_bare(self, text: str, start: int) -> int:
        """See `ToolFormat.find_bare`."""
        for found in _BEGIN.finditer(text, start) if self._guesses else ():
            elements = find_elements(text, found.start(1)) if not found[2] else ()
            # One call, which may have been cut off, and not words with one.
            whole = (
                begin
                for _, begin, end in elements
                if end == len(text) or text[begin:end].rstrip().endswith(")")
            )
            if found[2] or any(_SURE_CALL.match(text, begin) for begin in whole):
                return found.start(1)
        return len(text)

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        reader.skip_space()
        if reader.at("["):
            reader.attempt_list(partial(read_python_call, reader, until=",]"))
            return
        while not reader.at_stop:
            step = partial(read_python_call, reader, until="\n")
            if not reader.attempt(step, starts=reader.stops):
                return
            reader.skip_space()

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return f"[{', '.join(map(_render_python_call, calls))}]"


def read_python_call(reader: Reader, *, until: str, method: str = "") -> None:
    """`NAME(KEY=VALUE, ...)`, or `NAME.call(...)` with `method`. Raises Lost, BadJson, Refused.

    What is no call goes up to one of `until`.
    """
    head = _HEAD.match(reader.text, reader.position)
    if not head:
        reader.refuse_item(until)
    name, reader.position = head[1].removesuffix(method), head.end(1)
    begin, extent = reader.position, find_close(reader.text, reader.position)
    reader.position = extent.end
    if extent.fault:
        raise Lost(extent.fault, extent.reason)
    reader.add(name, read_keywords(reader.text[begin + 1 : extent.end - 1]))


def _render_python_call(call: ToolCall) -> str:
    arguments = (f"{key}={plain(value)!r}" for key, value in call.arguments.items())
    return f"{call.name}({', '.join(arguments)})"
