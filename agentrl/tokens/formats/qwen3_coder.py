"""Qwen3-Coder, Qwen 3.5 and later, Nemotron 3: a tag for the function and each parameter."""

from collections.abc import Sequence
from functools import partial

from agentrl.tokens.formats.base import ToolFormat
from agentrl.tokens.formats.reader import Reader
from agentrl.tokens.formats.tags import Tags, name_before
from agentrl.types import ToolCall

CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION = "<function="
TAGS = Tags(("<parameter=", ">"), "</parameter>", "</function>", line="\n")


class Qwen3Coder(ToolFormat):
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.

    The line break behind a parameter's tag and the one before its end belong to the tags.
    """

    name = "qwen3_coder"
    signs = ((CALL, "<function="),)
    starts, ends, parts = (CALL,), (CALL_END,), (FUNCTION, TAGS.argument[0])
    once = (FUNCTION,)

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        reader.skip_space()
        name, texts = reader.take_only(
            partial(_take_name_and_arguments, reader), FUNCTION, self.ends
        )
        reader.add_texts(name, texts)

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return "\n".join(
            f"{CALL}\n<function={c.name}>\n{TAGS.write(c.arguments)}</function>\n{CALL_END}"
            for c in calls
        )


def _take_name_and_arguments(reader: Reader) -> tuple[str, dict[str, str]]:
    reader.expect(FUNCTION, f"after {CALL}")
    name = name_before(reader, ">")
    return name, TAGS.read(reader, name)
