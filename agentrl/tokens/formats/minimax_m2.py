"""MiniMax M2: `<invoke>` blocks inside `<minimax:tool_call>`."""

from collections.abc import Sequence

from agentrl.tokens.formats.base import ToolFormat
from agentrl.tokens.formats.reader import Lost, Reader
from agentrl.tokens.formats.tags import Tags, name_before
from agentrl.types import ToolCall

CALLS, CALLS_END = "<minimax:tool_call>", "</minimax:tool_call>"
INVOKE, INVOKE_END = '<invoke name="', "</invoke>"
TAGS = Tags(('<parameter name="', '">'), "</parameter>", INVOKE_END)


class MiniMaxM2(ToolFormat):
    """`<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`, any number."""

    name = "minimax_m2"
    signs = ((CALLS,),)
    starts, ends = (CALLS,), (CALLS_END,)

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        reader.skip_space()
        while not reader.take(CALLS_END) and not reader.at_end:
            if not reader.at(INVOKE):
                raise Lost("malformed", f"expected {INVOKE} or {CALLS_END}")
            reader.attempt(
                lambda: _read_one(reader), ends=(INVOKE_END,), starts=(INVOKE, CALLS_END)
            )
            reader.skip_space()

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        bodies = (f'{INVOKE}{c.name}">\n{TAGS.write(c.arguments)}{INVOKE_END}\n' for c in calls)
        return f"{CALLS}\n{''.join(bodies)}{CALLS_END}"


def _read_one(reader: Reader) -> None:
    reader.take(INVOKE)
    name = name_before(reader, '">')
    reader.add_texts(name, TAGS.read(reader, name))
