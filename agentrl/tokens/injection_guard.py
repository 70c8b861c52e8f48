"""Keeps the text of messages apart from the template's scaffold, so that it stays text.

Before a message is rendered, a secret *cut* is put behind every character of it that could begin a
control token, or a text that the template looks for in messages. After rendering, what looks like a
control token is therefore the template's own: no control token has a cut in it, whatever `trim`,
`split` or `tojson` did to the text around. Cuts vanish when the text is encoded, and a message
without such characters is rendered and encoded unchanged, so benign conversations have exactly the
ids of the plain template.

A control token could also come together from parts of scaffold and content: scaffold that ends in
`<|im_` before content that begins with `end|>`. If the template has such a text, content that
begins with the rest of a control token gets a cut in front. A template that puts such a text into
the midst of content (`replace`, `join`) is watched: if its rendering has more control tokens than
with harmless content, every character gets a cut.

No cut fits into a control token of one character: content has a secret *stand-in* in its place.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

from agentrl.tokens.tokenizer import Tokenizer, private_text
from agentrl.types import Json

Mark = Callable[[str], str]

_TEXTS_KEPT = 1024
_KEPT_CHARS = 4096
"""A longer text is a content, which hardly comes again."""


class ContentGuard:
    """Marks content before rendering and encodes what was rendered."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        template = tokenizer.template
        controls = list(tokenizer.controls)
        self._cut = private_text()
        self._stand_ins = {text: private_text() for text in controls if len(text) == 1}
        secrets = {self._cut: ""} | {secret: text for text, secret in self._stand_ins.items()}
        # Each as it is, in JSON with ASCII escapes, and in Python's own form of a list.
        self._meant = {
            form: text
            for secret, text in secrets.items()
            for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])
        }
        self._secret_pattern = re.compile(f"({'|'.join(map(re.escape, self._meant))})")
        self._control_ids = frozenset(tokenizer.controls.values())
        # Finds the characters that a cut goes behind.
        tested = template.tested
        firsts = {text[0] for text in controls}
        longer = (text for text in tested if len(text) > 1 and text[0] not in firsts)
        behind = [f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in sorted(longer)]
        self._begins = re.compile("|".join([*map(re.escape, sorted(firsts)), *behind]) or "(?!)")
        self._longest = max(map(len, controls), default=0)
        self._controls = controls
        self._joins = any(map(self._ends_with_partial_control, template.literals))
        self._scaffold = re.compile(f"({tokenizer.control_pattern.pattern})")
        self._between_kept = lru_cache(maxsize=_TEXTS_KEPT)(self._encode_text_between)
        self.stitches = any(map(self._ends_with_partial_control, template.inserted))
        """Whether the template may put a part of a control token into the midst of content."""

    def mark(self, content: str) -> str:
        """The content to render in place of `content`; the same object if it is harmless."""
        content = _replace_lone_surrogates(content)
        marked = self._begins.sub(self._break_matched_control_token, content)
        start = content.lstrip() if self._joins else ""
        # Scaffold before and behind it might make a control token of this content.
        heads = (start[:k] for k in range(1, min(len(start) + 1, self._longest)))
        inside = len(start) < self._longest and any(start.rstrip() in c for c in self._controls)
        if start and (inside or not self._control_tails.isdisjoint(heads)):
            at = len(content) - len(start)
            marked = content[:at] + self._cut + marked[at:]
        return marked

    def mark_everywhere(self, content: str) -> str:
        """The content with cuts between all its characters."""
        return self._cut.join(self._stand_ins.get(c, c) for c in _replace_lone_surrogates(content))

    def neutral(self, content: str) -> str:
        """Harmless text in the content's place, for counting the control tokens of the scaffold."""
        return "x" if content.strip() else content

    def encode(self, rendered: str) -> list[int]:
        """Ids of rendered text; control tokens are recognised in the scaffold only."""
        if not any(map(rendered.__contains__, self._meant)):
            ids = self._encode_rendered_in_pieces(rendered)
            if ids is not None:
                return ids
        return self._tokenizer.encode_pieces(list(self._split_into_control_ids_and_text(rendered)))

    def _encode_rendered_in_pieces(self, rendered: str) -> list[int] | None:
        """The ids, from those of each text between control tokens; None if there are others.

        No token reaches across a control token, and most of the texts are the template's own.
        """
        ids: list[int] = []
        before, *rest = "", *self._scaffold.split(rendered), ""
        for text, after in zip(rest[::2], rest[1::2], strict=True):
            between = self._between_kept if len(text) <= _KEPT_CHARS else self._encode_text_between
            found = between(before, text, after)
            if found is None:
                return None
            ids += found
            before = after
        return ids

    def _encode_text_between(self, before: str, text: str, after: str) -> list[int] | None:
        """The ids of the text and of the control token behind it; None if more of it became one."""
        ids = self._tokenizer.encode(before + text + after, specials=True)
        flanks = [self._tokenizer.controls[flank] for flank in (before, after) if flank]
        if [number for number in ids if number in self._control_ids] != flanks:
            return None  # a normalizer made a control token out of other text, or lost one
        return ids[bool(before) :]

    def num_controls(self, rendered: str) -> int:
        """How many control tokens the scaffold of rendered text has."""
        return len(self._tokenizer.control_pattern.findall(rendered))

    def plain(self, rendered: str) -> str:
        """Rendered text as a reader sees it."""
        return self._secret_pattern.sub(lambda match: self._meant[match[0]], rendered)

    def _break_matched_control_token(self, begin: re.Match[str]) -> str:
        return self._stand_ins.get(begin[0]) or begin[0] + self._cut

    def _ends_with_partial_control(self, text: str) -> bool:
        """Whether the text ends with the beginning of a control token."""
        heads = self._tokenizer.control_heads
        return any(text[-k:] in heads for k in range(1, min(len(text) + 1, self._longest)))

    @cached_property
    def _control_tails(self) -> frozenset[str]:
        return frozenset(c[k:] for c in self._controls for k in range(1, len(c)))

    def _split_into_control_ids_and_text(self, rendered: str) -> Iterator[str | int]:
        """Control ids of the scaffold, and the text between them without cuts."""
        controls = self._tokenizer.controls
        for part in self._secret_pattern.split(rendered):
            if part in self._meant:
                yield self._meant[part]
                continue
            end = 0
            for match in self._tokenizer.control_pattern.finditer(part):
                yield part[end : match.start()]
                yield controls[match[0]]
                end = match.end()
            yield part[end:]


def _replace_lone_surrogates(content: str) -> str:
    """The content with U+FFFD for halves of surrogate pairs, which no encoding of text holds."""
    try:
        content.encode()
    except UnicodeEncodeError:
        return content.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return content


def mark_json(value: Json, mark: Mark) -> Json:
    """Every string and key in a JSON value marked, as plain lists and dicts."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        return {mark(key): mark_json(item, mark) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [mark_json(item, mark) for item in value]
    return value
