"""Does a tokenizer give back what it was given? Said for a fixed text, in a millisecond."""

import string
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, cast

import tokenizers

from agentrl.errors import ConfigError

_PROBE = f"  \n{string.ascii_letters} {string.digits}\n\n\t{string.punctuation} né 中 हि ² "
"""All of ASCII that is written, and what NFC leaves as it is."""
_AROUND = 8
"""Characters shown before and behind one that was altered."""


def check_round_trip(definition: Mapping[str, Any], tokenizer: tokenizers.Tokenizer) -> None:
    """Raise ConfigError if a tokenizer loses or rewrites text, or draws its ids by chance.

    A blank more or less at the very beginning is what tokenizers with a prefix of words do.
    """
    if definition["model"].get("dropout"):
        raise ConfigError(
            f"tokenizer.json: model.dropout is {definition['model']['dropout']}, so the same text "
            "gets other ids each time; set it to null"
        )
    said = "".join([_PROBE, *_replaced(definition.get("normalizer")), "  "])
    ids = tokenizer.encode(said, add_special_tokens=False).ids
    if ids != tokenizer.encode(said, add_special_tokens=False).ids:
        raise ConfigError(
            "tokenizer.json: the same text gets other ids each time; save the tokenizer again "
            "without what draws them"
        )
    heard = tokenizer.decode(ids, skip_special_tokens=False)
    if heard not in (said, f" {said}", said[1:]):
        before, after = _difference(said, heard)
        raise ConfigError(
            f"tokenizer.json: the text {before!a} comes back as {after!a}, so what a model is told "
            "is lost or rewritten; put the model's own tokenizer there"
        )


def _replaced(normalizer: object) -> Iterator[str]:
    """The texts that a normalizer puts others in the place of."""
    if isinstance(normalizer, dict):
        step = cast("dict[str, Any]", normalizer)
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and "String" in pattern:
            yield str(cast("dict[str, object]", pattern)["String"])
        for inner in step.get("normalizers") or ():
            yield from _replaced(inner)


def _difference(said: str, heard: str) -> tuple[str, str]:
    """Both texts around the first character that is another one."""
    pairs = enumerate(zip_longest(said, heard))
    at = next(place for place, (one, other) in pairs if one != other)
    shown = slice(max(at - _AROUND, 0), at + _AROUND)
    return said[shown], heard[shown]
