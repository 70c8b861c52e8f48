"""Muse Glimmer: messages to recipients; a call is a message with one tag for each argument."""

from collections.abc import Sequence

from agentrl.tokens.formats.harmony import MESSAGE, START, Harmony
from agentrl.tokens.formats.reader import Reader
from agentrl.tokens.formats.tags import Tags, name_before
from agentrl.types import ToolCall

CALLS, CALLS_END = "<atem:function_calls>", "</atem:function_calls>"
INVOKE, INVOKE_END = '<atem:invoke name="', "</atem:invoke>"
TAGS = Tags(('<atem:parameter name="', '">'), "</atem:parameter>", INVOKE_END)


class Atem(Harmony):
    """` to=NAME<|message|><atem:function_calls><atem:invoke name="NAME">...`.

    A message to `self` is reasoning, one to `user`, or to nobody, text.
    """

    name = "atem"
    signs = ((CALLS, INVOKE),)
    ends = ("<|eom|>", "<|eot|>")
    inner = (MESSAGE,)
    think = (" to=self<|message|>", "<|eom|>")

    def recipient(self, head: str) -> str:
        """See `Harmony.recipient`."""
        name = super().recipient(head)
        return "" if name in ("self", "user") else name

    def is_reasoning(self, head: str) -> bool:
        """See `Harmony.is_reasoning`."""
        return super().recipient(head) == "self"

    def read_message(self, reader: Reader, name: str) -> None:
        """See `Harmony.read_message`; the tag's name is the tool's."""
        reader.skip_space()
        reader.expect(CALLS, "in a message to a tool")
        reader.skip_space()
        reader.expect(INVOKE, f"after {CALLS}")
        name = name_before(reader, '">')
        texts = TAGS.read(reader, name)
        reader.skip_space()
        reader.expect(CALLS_END, f"after {INVOKE_END}")
        self.expect_stop(reader)
        reader.add_texts(name, texts)

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return f"{START}assistant".join(
            f" to={c.name}{MESSAGE}{CALLS}\n"
            f'{INVOKE}{c.name}">\n{TAGS.write(c.arguments)}{INVOKE_END}\n{CALLS_END}{self.ends[0]}'
            for c in calls
        )
