"""Muse Glimmer: messages to recipients; a call is a message with one tag for each argument."""

from collections.abc import Sequence

from agentrl.tokens.formats.harmony import MESSAGE, START, Harmony
from agentrl.tokens.formats.reader import Lost, Reader
from agentrl.tokens.formats.tags import Tags
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

    def recipient(self, head: str) -> str | None:
        """See `Harmony.recipient`."""
        name = super().recipient(head)
        return None if name in ("self", "user") else name

    def is_reasoning(self, head: str) -> bool:
        """See `Harmony.is_reasoning`."""
        return super().recipient(head) == "self"

    def is_call(self, text: str, marker: str) -> bool:
        """See `Harmony.is_call`."""
        return text.strip().removeprefix("assistant").lstrip().startswith(CALLS)

    def read_message(self, reader: Reader, name: str) -> None:
        """See `Harmony.read_message`; the tags' names are the tools'."""
        reader.skip_space()
        reader.expect(CALLS, "in a message to a tool")
        reader.skip_space()
        while not reader.take(CALLS_END):
            if self._is_at_marker_or_end(reader):
                raise Lost("malformed", f"expected {CALLS_END} behind the calls")
            found = TAGS.attempt(reader, INVOKE, (CALLS_END, *self.ends, *self.starts))
            if not found and self._is_at_marker_or_end(reader):
                return
            reader.skip_space()
        self.expect_stop(reader)

    def _is_at_marker_or_end(self, reader: Reader) -> bool:
        return reader.at_end or any(map(reader.at, (*self.ends, *self.starts)))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return f"{START}assistant".join(
            f" to={c.name}{MESSAGE}{CALLS}\n"
            f'{INVOKE}{c.name}">\n{TAGS.write(c.arguments)}{INVOKE_END}\n{CALLS_END}{self.ends[0]}'
            for c in calls
        )
