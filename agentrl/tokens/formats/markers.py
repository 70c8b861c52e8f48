"""Text in which a format's markers can be found, by id where they are tokens of their own."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from agentrl.tokens.tokenizer import Tokenizer

Finder = Callable[[str, int], int]
"""Where in a text, at or behind a place, something begins; the text's length if it is not there."""


class MarkedText:
    """A turn's text; positions mostly move forward, so all searches together are linear."""

    def __init__(self, text: str, places: Mapping[str, Sequence[int]] | None = None) -> None:
        """`places` gives the sorted positions of markers that count only there."""
        self.text = text
        self._places = places or {}
        self._last: dict[str | Finder, tuple[int, int]] = {}

    @classmethod
    def from_ids(
        cls, ids: Sequence[int], tokenizer: Tokenizer, single: Mapping[int, str]
    ) -> "MarkedText":
        """The decoded ids; the markers in `single` are tokens, so they are found by id only."""
        places: dict[str, list[int]] = {marker: [] for marker in single.values()}
        if single.keys().isdisjoint(ids):
            return cls(tokenizer.decode(ids), places)
        pieces: list[str] = []
        length, begin = 0, 0
        for index in [i for i, number in enumerate(ids) if number in single]:
            marker = single[ids[index]]
            pieces.append(tokenizer.decode(ids[begin:index]))
            length += len(pieces[-1])
            places[marker].append(length)
            pieces.append(marker)
            length += len(marker)
            begin = index + 1
        pieces.append(tokenizer.decode(ids[begin:]))
        return cls("".join(pieces), places)

    def find(self, marker: str, start: int) -> int:
        """The next position of `marker` at or after `start`; the text's length if there is none."""
        if marker in self._places:
            places = self._places[marker]
            index = bisect_left(places, start)
            return places[index] if index < len(places) else len(self.text)
        since, found = self._last.get(marker, (0, -1))
        if not since <= start <= found:
            found = self.text.find(marker, start)
            found = len(self.text) if found < 0 else found
            self._last[marker] = (start, found)
        return found

    def find_by(self, finder: Finder, start: int) -> int:
        """The same for what has no id."""
        since, found = self._last.get(finder, (0, -1))
        if not since <= start <= found:
            found = finder(self.text, start)
            self._last[finder] = (start, found)
        return found
