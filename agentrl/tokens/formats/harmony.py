"""gpt-oss: messages on channels; a call is a message to a function."""

import re
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.reader import Lost, Reader
from agentrl.tokens.formats.scan import read
from agentrl.types import ToolCall

START, MESSAGE, CALL = "<|start|>", "<|message|>", "<|call|>"
_RECIPIENT = re.compile(r"\bto=([^\s<]{1,256})")
_ANALYSIS = re.compile(r"<\|channel\|>\s{0,8}analysis")


class Harmony(ToolFormat):
    """`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.

    A message that has a recipient is a call, one in the channel `analysis` reasoning, any other
    text. The prompt ends with the begin of the first message. With `thinking`, it ends inside a
    message of the analysis channel.
    """

    name = "harmony"
    signs: ClassVar[Sequence[Sequence[str]]] = (("<|channel|>", "commentary", CALL),)
    starts = (START,)
    ends: ClassVar[Sequence[str]] = (CALL, "<|end|>", "<|return|>")
    inner: ClassVar[Sequence[str]] = ("<|channel|>", MESSAGE, "<|constrain|>")
    think = ("<|channel|>analysis<|message|>", "<|end|>")

    def read(self, reader: Reader, thinking: bool) -> None:
        """See `ToolFormat.read`."""
        if thinking:
            reader.take(self.think[0])
            reader.thoughts.append(self._body(reader))
        while not reader.at_end:
            begin, marker = reader.next((MESSAGE,))
            head = reader.text[reader.position : begin]
            reader.position = begin + len(marker)
            if not marker:
                reader.texts.append(head)
            elif name := self.recipient(head):
                step = partial(self.read_message, reader, name)
                reader.attempt(step, ends=self.ends, starts=self.starts)
            elif self.is_reasoning(head):
                reader.thoughts.append(self._body(reader))
            else:
                reader.texts.append(self._body(reader))

    def recipient(self, head: str) -> str:
        """The tool that a message is meant for, "" if it is none."""
        found = _RECIPIENT.search(head)
        return found[1].removeprefix("functions.") if found else ""

    def is_reasoning(self, head: str) -> bool:
        """True if a message with this head is reasoning."""
        return _ANALYSIS.search(head) is not None

    def read_message(self, reader: Reader, name: str) -> None:
        """Read the call in a message to the tool `name`. Raises BadJson, Refused or Lost."""
        reader.skip_space()
        found = reader.take_json()
        self.expect_stop(reader)
        reader.add(name, read(found))

    def expect_stop(self, reader: Reader) -> None:
        """Move behind the end of a message. Raises Lost if it is not here."""
        reader.skip_space()
        if not reader.at_end and not any(map(reader.take, (*self.ends, *self.starts))):
            raise Lost("malformed", f"expected {self.ends[0]} after the arguments")

    def _body(self, reader: Reader) -> str:
        begin, (end, marker) = reader.position, reader.next((*self.ends, *self.starts))
        reader.position = end + len(marker)
        return reader.text[begin:end]

    def render_reasoning(self, reasoning: str) -> str:
        """See `ToolFormat.render_reasoning`."""
        return f"{self.think[0]}{reasoning}{self.think[1]}{START}assistant"

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return f"{START}assistant".join(
            f"<|channel|>commentary to=functions.{c.name} <|constrain|>json{MESSAGE}"
            f"{to_json(c.arguments)}{CALL}"
            for c in calls
        )
