"""Kimi K2: `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}`."""

import re
from collections.abc import Sequence

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.reader import Reader
from agentrl.tokens.formats.scan import read
from agentrl.tokens.formats.tags import name_before
from agentrl.types import ToolCall

CALLS, CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_NUMBER = re.compile(r":\d{1,9}$")


class KimiK2(ToolFormat):
    """The tool's name is part of the call's id."""

    name = "kimi_k2"
    signs = ((CALL, ARGUMENTS),)
    starts, ends = (CALL,), (CALL_END,)
    opens, closes = (CALLS,), (CALLS_END,)
    parts = once = (ARGUMENTS,)

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        name = _NUMBER.sub("", name_before(reader, ARGUMENTS).removeprefix("functions."))
        reader.skip_space()
        found = reader.take_json()
        reader.skip_space()
        reader.expect(CALL_END, "after the JSON object")
        reader.add(name, read(found))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        bodies = (
            f"{CALL}functions.{c.name}:{i}{ARGUMENTS}{to_json(c.arguments)}{CALL_END}"
            for i, c in enumerate(calls)
        )
        return f"{CALLS}{''.join(bodies)}{CALLS_END}"
