"""GLM 4.5 and later: the name, then a pair of tags for each argument."""

import re
from collections.abc import Sequence

from agentrl.tokens.formats.base import ToolFormat
from agentrl.tokens.formats.reader import Reader
from agentrl.tokens.formats.tags import Tags
from agentrl.types import ToolCall

CALL, CALL_END = "<tool_call>", "</tool_call>"
TAGS = Tags(("<arg_key>", "</arg_key>", "<arg_value>"), "</arg_value>", CALL_END)
_NAME = re.compile(r"[^<>\n]{1,256}")


class Glm(ToolFormat):
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`."""

    name = "glm"
    signs = ((CALL, "<arg_key>"),)
    starts, ends = (CALL,), (CALL_END,)
    parts, inner = TAGS.argument[:1], TAGS.all[1:]

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        reader.skip_space()
        name = reader.take_match(_NAME, f"the tool's name after {CALL}").strip()
        reader.add_texts(name, TAGS.read(reader, name))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return "\n".join(f"{CALL}{c.name}\n{TAGS.write(c.arguments)}{CALL_END}" for c in calls)
