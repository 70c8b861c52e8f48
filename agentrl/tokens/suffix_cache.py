"""What a template writes around the contents of messages, so that it need not be run every time.

A frame is found by rendering messages with secret contents, and is believed only if it gives what
the template gives for contents of all kinds, and if the template's source looks for nothing in
contents that could be in a harmless one.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentrl.errors import ConfigError
from agentrl.types import Message

Suffix = Callable[[Sequence[Message]], str]

_TRIALS = (
    " a ",
    "\n\nlines\n\n",
    "\ttab",
    '"quoted" \\ back\\n',
    "it's",
    "Zähle 日本語 🙂 e\u0301\u200b\ufeff",
    '{"a": [1, null]}',
    "a & b; 100 % {{ x }} {% y %} # $ ~ ^ `",
    "0",
    "null",
    "True",
    "x" * 20_000,
    "line\n" * 300,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """Text around contents; without `parts`, no frame holds."""

    parts: tuple[str, ...] = ()
    trims: bool = False

    def around(self, contents: Sequence[str]) -> str:
        """The text with these contents; empty if no frame holds."""
        if not self.parts:
            return ""
        pieces = [self.parts[0]]
        for content, part in zip(contents, self.parts[1:], strict=True):
            if self.trims:
                content = content.strip()
                if not content:
                    return ""
            pieces += (content, part)
        return "".join(pieces)


def find_frame(suffix: Suffix, messages: Sequence[Message], verbatim: bool) -> Frame:
    """The frame of messages like these, or one without parts.

    `suffix` renders messages; `verbatim` says that the template's source looks for nothing in them.
    """
    try:
        return _derive_frame_around_contents(suffix, messages) if verbatim else Frame()
    except ConfigError:
        return Frame()


def _derive_frame_around_contents(suffix: Suffix, messages: Sequence[Message]) -> Frame:
    words = [f"{secrets.token_hex(8)}x" for _ in messages]
    text = suffix(_copy_messages_with_contents(messages, words))
    parts: list[str] = []
    for word in words:
        part, found, text = text.partition(word)
        if not found or word in text:
            return Frame()
        parts.append(part)
    for trims in (False, True):
        frame = Frame((*parts, text), trims)
        tried = [[trial] * len(messages) for trial in _TRIALS]
        if all(
            suffix(_copy_messages_with_contents(messages, said)) == frame.around(said)
            for said in tried
        ):
            return frame
    return Frame()


def _copy_messages_with_contents(
    messages: Sequence[Message], contents: Sequence[str]
) -> list[Message]:
    return [replace(m, content=content) for m, content in zip(messages, contents, strict=True)]
