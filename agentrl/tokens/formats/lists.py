"""Follows text that may be a list of calls which no marker announces: linear, nothing evaluated.

A list begins a line, and an element counts wherever it stands: behind any other, or in a list that
is an element itself. What a list is cannot be known before it ends, so brackets are counted and
strings skipped, which end with their line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r""""(?:[^"\\\n]|\\.)*(?:"|$)|'(?:[^'\\\n]|\\.)*(?:'|$)|[][(){},;]|[^][(){},;\s"']+""",
    re.MULTILINE,
)
_MOST_OPEN = 8
"""Lists that begin at lines inside each other are all followed, so there may not be many."""


@dataclass(slots=True)
class _Bracket:
    place: int
    holds_elements: bool
    begun: int | None = None
    """Where its element begins that has not ended."""

    def end(self, place: int) -> Iterator[tuple[int, int, int]]:
        """Its element, if there is one, which ends here."""
        if self.begun is not None:
            yield self.place, self.begun, place
        self.begun = None


@dataclass(slots=True)
class _Follower:
    opened: list[_Bracket] = field(default_factory=list[_Bracket])
    fresh: bool = True
    """True where an element may begin."""

    def follow(self, place: int, character: str) -> Iterator[tuple[int, int, int]]:
        """The element that ends with this token."""
        inner = self.opened[-1] if self.opened else None
        if character in "])}" and inner:
            yield from inner.end(place)
            self.opened.pop()
            self.fresh = False
        elif character == "," or (character == ";" and not inner):
            yield from inner.end(place) if inner else ()
            self.fresh = not inner or inner.holds_elements
        else:
            if inner and self.fresh:
                inner.begun = place
            self.fresh = (self.fresh or not inner) and character in "[({"
            if character in "[({":
                self.opened.append(_Bracket(place, self.fresh))


def find_elements(text: str, begin: int) -> Iterator[tuple[int, int, int]]:
    """Elements of the list or object at `begin`, each with its bracket's place, begin and end.

    Of lists and objects on the same line behind it too. An element that was cut off ends with the
    text.
    """
    follower, end = _Follower(), begin
    for token in _TOKEN.finditer(text, begin):
        if not follower.opened and (
            "\n" in text[end : token.start()] or not (follower.fresh or token[0][0] in ",;[{")
        ):
            return
        yield from follower.follow(token.start(), token[0][0])
        end = token.end()
        if len(follower.opened) > _MOST_OPEN:
            break
    for bracket in follower.opened:
        yield from bracket.end(len(text))
