"""The segments of one episode: token records one after the other, and what they show.

    begin(prompt) -> turns -> begin(new prompt) -> turns -> close
                              └ closes the segment before it, with its own digest

Whoever rewrites history goes through `begin`: a context policy with other messages, or a template
that renders the same messages anew.
"""

from collections.abc import Sequence

from agentrl.tokens import TokenRecord
from agentrl.types import Message, Segment


class Segments:
    """Closed segments and the record that grows; turns are numbered over all of them."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._closed: list[Segment] = []
        self._start: tuple[Message, ...] = ()
        self._covered = 0
        self.record = TokenRecord(vocab_size)
        """Of the open segment."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all segments, each with its prompt."""
        return sum(segment.num_tokens for segment in self._closed) + self.record.num_tokens

    def begin(self, ids: Sequence[int], messages: Sequence[Message], covered: int) -> None:
        """Close the open segment, if there is one, and begin the next with a prompt.

        Args:
            ids: the rendered prompt.
            messages: what it shows.
            covered: for how many of the episode's messages it stands; later ones follow it.
        """
        if self.record.num_tokens:
            self._closed.append(self.record.close())
            self.record = TokenRecord(self._vocab_size, first_turn=self.record.turn)
        self.record.append_prompt(ids)
        self._start, self._covered = tuple(messages), covered

    def shown(self, conversation: Sequence[Message]) -> tuple[Message, ...]:
        """The messages of the open segment, where the episode has had `conversation`."""
        return (*self._start, *conversation[self._covered :])

    def close(self) -> tuple[Segment, ...]:
        """All segments; nothing can be appended afterwards."""
        if self.record.num_tokens:
            self._closed.append(self.record.close())
        return tuple(self._closed)
