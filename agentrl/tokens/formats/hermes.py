"""Hermes, Qwen 2.5, Qwen 3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from collections.abc import Sequence

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.reader import Reader
from agentrl.types import ToolCall

CALL, CALL_END = "<tool_call>", "</tool_call>"


class Hermes(ToolFormat):
    """One JSON object a call, with `name` and `arguments` and nothing else.

    Arguments left out are no arguments. Arguments written as a JSON string count if the string
    holds an object.
    """

    name = "hermes"
    signs = ((CALL,),)
    starts, ends = (CALL,), (CALL_END,)
    manner = "write its name and its arguments as a JSON object between these markers"

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        reader.skip_space()
        reader.add_object(reader.take_only(reader.take_json, "{", self.ends))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        written = (to_json({"name": call.name, "arguments": call.arguments}) for call in calls)
        return "\n".join(f"{CALL}\n{call}\n{CALL_END}" for call in written)
