"""Phi-4-mini: `<|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>`, or `functools[`."""

import re
from collections.abc import Sequence

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.reader import Reader
from agentrl.types import ToolCall

CALLS, CALLS_END = "<|tool_call|>", "<|/tool_call|>"
FUNCTOOLS = "functools"
_BARE = re.compile(rf"^[ \t]*({FUNCTOOLS}\[)", re.MULTILINE)


class Phi4Mini(ToolFormat):
    """A list of objects; `functools` before it stands for the marker at the beginning of a line."""

    name = "phi4_mini"
    signs = (("<|/tool|>",), ("functools[",))
    starts, closes = (CALLS,), (CALLS_END,)

    def find_bare(self, text: str, start: int) -> int:
        """See `ToolFormat.find_bare`."""
        found = _BARE.search(text, start)
        return found.start(1) if found else len(text)

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        going_on = True
        while going_on:
            reader.take(FUNCTOOLS)
            reader.skip_space()
            reader.attempt_list(
                lambda: reader.add_object(reader.take_listed(), ignored=("type", "id"))
            )
            reader.skip_space()
            going_on = reader.at(f"{FUNCTOOLS}[")

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        bodies = (to_json({"name": c.name, "arguments": c.arguments}) for c in calls)
        return f"{CALLS}[{', '.join(bodies)}]{CALLS_END}"
