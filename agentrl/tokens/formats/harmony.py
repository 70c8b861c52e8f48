"""gpt-oss: messages on channels; a call is a message to a function."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.reader import Lost, Reader, Refused, raise_error
from agentrl.tokens.formats.scan import read
from agentrl.types import CallErrorReason, ToolCall

START, MESSAGE, CALL = "<|start|>", "<|message|>", "<|call|>"
_RECIPIENT = re.compile(r"\bto=([^\s<]{0,256})")
_ADDRESSED = re.compile(r"\s{0,8}(?:assistant)?\s{0,8}(?:commentary|analysis)?\s{0,8}to=")
_SPELLED = re.compile(r"[<{]")
"""Behind it, what has no marker is no head."""
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
            reader.thoughts.append(self._take_message_body(reader)[0])
        while not reader.at_end:
            reader.take(START)
            begin = reader.position
            end, marker = reader.next((MESSAGE, *self.ends, *self.starts))
            head, reader.position = reader.text[begin:end], end + len(marker)
            name = self.recipient(head)
            if marker != MESSAGE:
                self._add_message_without_body(reader, head, marker)
            elif name is None:
                self._add_unaddressed_text(reader, head)
            else:
                self._add_addressed_call(reader, head, partial(self.read_message, reader, name))

    def _add_message_without_body(self, reader: Reader, head: str, marker: str) -> None:
        """Read a message of which nothing but the head is there, which ends with `marker`."""
        begin = reader.position - len(marker) - len(head)
        end = begin + len(head)
        is_head = any(reader.marked.find(inner, begin) < end for inner in self.inner)
        said, head = head, head if is_head else _SPELLED.split(head)[0]
        addressed = self.recipient(head) is not None and (is_head or _ADDRESSED.match(head))
        if addressed or self.is_call(said, marker):
            reader.position = end
            lost = Lost("malformed", f"expected {MESSAGE} behind the head of the message")
            self._add_addressed_call(reader, head, partial(raise_error, lost))
        else:
            reasoning = is_head and self.is_reasoning(head)
            (reader.thoughts if reasoning else reader.texts).append(said)

    def _add_addressed_call(self, reader: Reader, head: str, step: Callable[[], None]) -> None:
        """Read the call in a message; each recipient beyond the first is an error."""
        for name in _RECIPIENT.findall(head)[1:]:
            said = f"a message has one recipient, this one has to={name[:60]} too"
            reader.attempt(partial(raise_error, Refused(CallErrorReason.MALFORMED, said)))
        reader.attempt(step, ends=self.ends, starts=self.starts)

    def _add_unaddressed_text(self, reader: Reader, head: str) -> None:
        """Read a message to nobody."""
        body, marker = self._take_message_body(reader)
        if self.is_call(body, marker):
            said = "a call names its tool in the head of the message: to=NAME"
            reader.attempt(partial(raise_error, Refused(CallErrorReason.MALFORMED, said)))
        else:
            (reader.thoughts if self.is_reasoning(head) else reader.texts).append(body)

    def recipient(self, head: str) -> str | None:
        """The tool that a message is meant for; None if it is for nobody.

        It is "" if it has no name or is one of several.
        """
        found = _RECIPIENT.findall(head)
        return (found[0].removeprefix("functions.") if len(found) == 1 else "") if found else None

    def is_reasoning(self, head: str) -> bool:
        """True if a message with this head is reasoning."""
        return _ANALYSIS.search(head) is not None

    def is_call(self, text: str, marker: str) -> bool:
        """True if a message to nobody that ends with `marker` was meant as a call."""
        return marker == CALL

    def read_message(self, reader: Reader, name: str) -> None:
        """Read the call in a message to the tool `name`. Raises BadJson, Refused or Lost."""
        if not name:
            raise Lost("malformed", "expected the name of one tool behind to=")
        reader.skip_space()
        found = reader.take_json()
        self.expect_stop(reader)
        reader.add(name, read(found))

    def expect_stop(self, reader: Reader) -> None:
        """Move behind the end of a message. Raises Lost if it is not here."""
        reader.skip_space()
        if not reader.at_end and not any(map(reader.take, (*self.ends, *self.starts))):
            raise Lost("malformed", f"expected {self.ends[0]} after the arguments")

    def _take_message_body(self, reader: Reader) -> tuple[str, str]:
        begin, (end, marker) = reader.position, reader.next((*self.ends, *self.starts))
        reader.position = end + len(marker)
        return reader.text[begin:end], marker

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
