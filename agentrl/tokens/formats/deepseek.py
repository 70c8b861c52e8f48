"""DeepSeek V3, R1 (name, then JSON in a code fence) and V3.1 (name and JSON)."""

from collections.abc import Sequence

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.reader import Reader
from agentrl.tokens.formats.scan import read
from agentrl.tokens.formats.tags import name_before
from agentrl.types import ToolCall

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001
FENCE = "```"


class DeepSeek(ToolFormat):
    """What stands behind the separator tells the generations apart: the JSON, or the name."""

    name = "deepseek"
    signs = ((CALL,),)
    starts, ends = (CALL,), (CALL_END,)
    opens, closes = (CALLS,), (CALLS_END,)
    parts = once = (SEPARATOR,)

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        name = name_before(reader, SEPARATOR)
        reader.skip_space()
        fenced = not reader.at("{")
        if fenced:
            name = name_before(reader, "\n")
            reader.expect(f"{FENCE}json", "after the name")
            reader.skip_space()
        found = reader.take_json()
        reader.skip_space()
        if fenced:
            reader.expect(FENCE, "after the JSON object")
            reader.skip_space()
        reader.expect(CALL_END, "after the JSON object")
        reader.add(name, read(found))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        bodies = (f"{CALL}{c.name}{SEPARATOR}{to_json(c.arguments)}{CALL_END}" for c in calls)
        return f"{CALLS}{''.join(bodies)}{CALLS_END}"
