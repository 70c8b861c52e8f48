"""Mistral, both generations: `[TOOL_CALLS][{...}, {...}]` and `[TOOL_CALLS]NAME[ARGS]{...}`."""

from collections.abc import Sequence

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.reader import Lost, Reader
from agentrl.tokens.formats.scan import read
from agentrl.types import ToolCall

CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class Mistral(ToolFormat):
    """A list of objects with `name`, `arguments` and `id`, or name, id and arguments apart."""

    name = "mistral"
    signs = ((CALLS,),)
    starts = (CALLS,)
    parts = (CALL_ID, ARGS)
    once = (ARGS,)
    think = ("[THINK]", "[/THINK]")

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        reader.skip_space()
        if reader.at("[") and not reader.at_stop:
            reader.attempt_list(lambda: reader.add_object(reader.take_listed(), ignored=("id",)))
            return
        begin, head = reader.position, reader.take_until(ARGS, "the tool's name")
        name = head.partition(CALL_ID)[0].strip()
        if not name or CALLS in head:
            reader.position = begin
            raise Lost("malformed", f"expected the tool's name before {ARGS}")
        reader.skip_space()
        reader.add(name, read(reader.take_json()))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return "".join(f"{CALLS}{c.name}{ARGS}{to_json(c.arguments)}" for c in calls)
