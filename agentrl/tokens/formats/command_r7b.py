"""Command R7B, Command A: a list of objects between `<|START_ACTION|>` and `<|END_ACTION|>`."""

from collections.abc import Sequence
from functools import partial

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.reader import Reader
from agentrl.types import ToolCall

CALLS, CALLS_END = "<|START_ACTION|>", "<|END_ACTION|>"


class CommandR7B(ToolFormat):
    """`[{"tool_call_id": "0", "tool_name": NAME, "parameters": {...}}]`."""

    name = "command_r7b"
    signs = ((CALLS,),)
    starts = (CALLS,)
    noise, closes = ("<|START_RESPONSE|>", "<|END_RESPONSE|>"), (CALLS_END,)
    think = ("<|START_THINKING|>", "<|END_THINKING|>")

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        reader.skip_space()
        reader.attempt_list(partial(_add_command_r7b_call_to_reader, reader))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        bodies = (
            to_json({"tool_call_id": str(i), "tool_name": c.name, "parameters": c.arguments})
            for i, c in enumerate(calls)
        )
        return f"{CALLS}[{', '.join(bodies)}]{CALLS_END}"


def _add_command_r7b_call_to_reader(reader: Reader) -> None:
    reader.add_object(
        reader.take_listed(),
        name_key="tool_name",
        arguments_keys=("parameters",),
        ignored=("tool_call_id",),
    )
