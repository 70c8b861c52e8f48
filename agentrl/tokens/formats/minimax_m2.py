"""MiniMax M2: `<invoke>` blocks inside `<minimax:tool_call>`."""

from collections.abc import Sequence

from agentrl.tokens.formats.base import ToolFormat
from agentrl.tokens.formats.reader import Reader
from agentrl.tokens.formats.tags import Tags
from agentrl.types import ToolCall

CALLS, CALLS_END = "<minimax:tool_call>", "</minimax:tool_call>"
INVOKE, INVOKE_END = '<invoke name="', "</invoke>"
TAGS = Tags(('<parameter name="', '">'), "</parameter>", INVOKE_END)


class MiniMaxM2(ToolFormat):
    """`<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`, any number."""

    name = "minimax_m2"
    signs = ((CALLS,),)
    starts, ends, parts = (CALLS,), (CALLS_END,), (INVOKE, TAGS.argument[0])
    once = (INVOKE,)

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        reader.skip_space()
        while not reader.take(CALLS_END) and not reader.at_stop:
            TAGS.attempt(reader, INVOKE, (*self.starts, *self.ends))
            reader.skip_space()

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        bodies = (f'{INVOKE}{c.name}">\n{TAGS.write(c.arguments)}{INVOKE_END}\n' for c in calls)
        return f"{CALLS}\n{''.join(bodies)}{CALLS_END}"
