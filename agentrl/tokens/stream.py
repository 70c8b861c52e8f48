"""`TextStream`: the text of ids while they come in, for display."""

from collections.abc import Sequence

from agentrl.tokens.tokenizer import Tokenizer

_HALF = "\ufffd"
_LONGEST = 4
"""Ids of one byte that a character can take."""


class TextStream:
    """Decodes ids piece by piece; the pieces together are the text of all ids.

    An id may hold half of a character: the text is given out once the character is whole, or once
    it is clear that it never will be.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        """Ids just before, because the text of an id can depend on the one before it."""
        self._held: list[int] = []

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is certain after `ids`."""
        return "".join(self._feed_token_id(number) for number in ids)

    def finish(self) -> str:
        """The rest; half a character is U+FFFD."""
        return self._take_text_of_held_tokens(len(self._held))

    def _feed_token_id(self, number: int) -> str:
        self._held.append(number)
        if not self._decode_held_tokens(len(self._held)).endswith(_HALF):
            return self._take_text_of_held_tokens(len(self._held))
        if len(self._held) <= 2 * _LONGEST:
            return ""
        # Bytes that are no text: some cut leaves both sides as they are together.
        whole = self._decode_held_tokens(len(self._held))
        for cut in range(1, _LONGEST + 1):
            rest = self._tokenizer.decode(self._held[cut:])
            if self._decode_held_tokens(cut) + rest == whole:
                return self._take_text_of_held_tokens(cut)
        return ""

    def _decode_held_tokens(self, count: int) -> str:
        """The text of the first `count` held ids."""
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode([*self._shown, *self._held[:count]])[len(before) :]

    def _take_text_of_held_tokens(self, count: int) -> str:
        text = self._decode_held_tokens(count)
        self._shown = self._held[:count] or self._shown
        self._held = self._held[count:]
        return text
