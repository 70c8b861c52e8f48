"""A plain format for base models, one tag for each argument; models learn it from instructions."""

from collections.abc import Sequence

from agentrl.tokens.formats.base import ToolFormat
from agentrl.tokens.formats.reader import Reader
from agentrl.tokens.formats.tags import Tags, name_before
from agentrl.types import ToolCall

CALL, CALL_END = '<call name="', "</call>"
TAGS = Tags(('<arg name="', '">'), "</arg>", CALL_END)


class Xml(ToolFormat):
    """`<call name="NAME"><arg name="KEY">VALUE</arg></call>`; values are not escaped."""

    name = "xml"
    starts, ends, parts = (CALL,), (CALL_END,), TAGS.argument[:1]
    manner = (
        "write its name and one tag for each argument; strings as they are, everything else as JSON"
    )

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        name = name_before(reader, '">')
        reader.add_texts(name, TAGS.read(reader, name))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return "\n".join(f'{CALL}{c.name}">\n{TAGS.write(c.arguments)}{CALL_END}' for c in calls)
