"""What other people's code says, in a place that has one line for it."""

from typing import Final

_LIMIT: Final = 240
_TAIL: Final = 80
"""The end of a text often says where it comes from."""


def one_line(text: str) -> str:
    """The text without line breaks and control characters; a long one loses its middle.

    For tables and lines that people read: what is kept (JSON, events, episodes) has all of it.
    """
    words = " ".join(text.split())
    shown = words if words.isprintable() else "".join(map(_show_character, words))
    if len(shown) <= _LIMIT:
        return shown
    return f"{shown[: _LIMIT - _TAIL - 5]} ... {shown[-_TAIL:]}"


def _show_character(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]
