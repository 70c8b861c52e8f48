from collections.abc import Sequence

from agentrl.tokens import ToolFormat
from agentrl.tokens.formats.base import to_json
from agentrl.tokens.formats.reader import Reader
from agentrl.types import ToolCall


class Brackets(ToolFormat):
    """`[[{"name": ..., "arguments": {...}}]]`."""

    name = "brackets"
    starts, ends = ("[[",), ("]]",)
    manner = "write its name and its arguments as a JSON object in double brackets"

    def read_call(self, reader: Reader) -> None:
        """The call behind `[[`, up to `]]`."""
        reader.skip_space()
        reader.add_object(reader.take_only(reader.take_json, "{", self.ends))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """A line for each call."""
        return "\n".join(f"[[{_render_call(call)}]]" for call in calls)


def _render_call(call: ToolCall) -> str:
    return to_json({"name": call.name, "arguments": call.arguments})
