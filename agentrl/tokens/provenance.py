"""Keeps the text of messages apart from the template's scaffold, so that it stays text.

Before a message is rendered, each control token's text in it is replaced by a secret mark; after
rendering, what looks like a control token is the template's own, and the marks become text again,
encoded as text. A message that holds no such text is rendered and encoded unchanged, so benign
conversations have exactly the ids of the plain template.

A control token could also come together from parts: content that ends in `<|im_` before scaffold
that begins with `end|>`. Content that begins or ends with a part of a control token gets a secret
cut at that edge, which is nothing but a border when it is encoded.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from agentrl.tokens.tokenizer import Tokenizer, private_text
from agentrl.types import Json


class ContentGuard:
    """Marks content before rendering and encodes what was rendered."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        controls = list(tokenizer.controls)
        self._nonce = private_text()
        self._cut = self._nonce + chr(0x100000)
        self._mark_of = {c: self._nonce + chr(0x100001 + k) for k, c in enumerate(controls)}
        self._content_of = {mark: text for text, mark in self._mark_of.items()} | {self._cut: ""}
        # A template may write JSON with ASCII escapes; the marks are found in that form too.
        self._content_of |= {json.dumps(m)[1:-1]: text for m, text in self._content_of.items()}
        self._nonce_escaped = json.dumps(self._nonce)[1:-1]
        self._control_ids = frozenset(tokenizer.controls.values())
        self._prefixes = {c[:k] for c in controls for k in range(1, len(c))}
        self._suffixes = {c[k:] for c in controls for k in range(1, len(c))}
        self._longest = max(map(len, controls), default=0)
        self._special = re.compile(
            "|".join(map(re.escape, [*self._content_of, *sorted(controls, key=len, reverse=True)]))
        )

    def mark(self, content: str) -> str:
        """The content to render in place of `content`; the same object if it is harmless."""
        marked = self._tokenizer.control_pattern.sub(lambda m: self._mark_of[m[0]], content)
        edges = range(1, min(len(content) + 1, self._longest))
        inside = len(content) < self._longest and self._is_inside(content)
        if inside or any(content[:k] in self._suffixes for k in edges):
            marked = self._cut + marked
        if inside or any(content[-k:] in self._prefixes for k in edges):
            marked += self._cut
        return marked

    def mark_mapping(self, value: Mapping[str, Json]) -> dict[str, Json]:
        """The same for every string and key in a JSON object, as plain lists and dicts."""
        return {self.mark(key): self._mark_json(item) for key, item in value.items()}

    def _mark_json(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, Mapping):
            return self.mark_mapping(value)
        if isinstance(value, Sequence):
            return [self._mark_json(item) for item in value]
        return value

    def encode(self, rendered: str) -> list[int]:
        """Ids of rendered text; control tokens are recognised in the scaffold only."""
        pieces = list(self._pieces(rendered))
        if self._nonce not in rendered and self._nonce_escaped not in rendered:
            ids = self._tokenizer.encode(rendered, specials=True)
            if self._num_controls(ids) == sum(isinstance(piece, int) for piece in pieces):
                return ids
            # A normalizer made a control token out of other text.
        return self._tokenizer.encode_pieces(pieces)

    def plain(self, rendered: str) -> str:
        """Rendered text as a reader sees it, without marks."""
        controls = self._tokenizer.controls
        return self._special.sub(
            lambda m: m[0] if m[0] in controls else self._content_of[m[0]], rendered
        )

    def _is_inside(self, content: str) -> bool:
        return bool(content) and any(content in control for control in self._mark_of)

    def _num_controls(self, ids: list[int]) -> int:
        return sum(number in self._control_ids for number in ids)

    def _pieces(self, rendered: str) -> Iterator[str | int]:
        """Control ids of the scaffold, and the text between them with marks resolved."""
        controls, end = self._tokenizer.controls, 0
        for match in self._special.finditer(rendered):
            yield rendered[end : match.start()]
            found = match[0]
            yield controls[found] if found in controls else self._content_of[found]
            end = match.end()
        yield rendered[end:]
