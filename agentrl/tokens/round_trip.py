"""Does a tokenizer give back what it was given? Said for a fixed text, in a millisecond."""

import re
import string
from collections.abc import Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any, cast

import tokenizers

from agentrl.errors import ConfigError

_PROBE = f"  \n{string.ascii_letters} {string.digits}\n\n\t{string.punctuation} né 中 हि ² "
"""All of ASCII that is written, and what NFC leaves as it is."""
_SYNTAX = re.compile(r"\\[a-zA-Z]|[][\\(){}|?*+^$.]")
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
    steps = (definition.get("normalizer"), definition.get("pre_tokenizer"))
    said = "".join([_PROBE, *chain.from_iterable(map(_find_replaced_texts, steps)), "  "])
    ids = tokenizer.encode(said, add_special_tokens=False).ids
    if ids != tokenizer.encode(said, add_special_tokens=False).ids:
        raise ConfigError(
            "tokenizer.json: the same text gets other ids each time; save the tokenizer again "
            "without what draws them"
        )
    heard = tokenizer.decode(ids, skip_special_tokens=False)
    if heard not in (said, f" {said}", said[1:]):
        # Both texts around the first character that is another one.
        pairs = enumerate(zip_longest(said, heard))
        at = next(place for place, (one, other) in pairs if one != other)
        shown = slice(max(at - _AROUND, 0), at + _AROUND)
        before, after = said[shown], heard[shown]
        raise ConfigError(
            f"tokenizer.json: the text {before!a} comes back as {after!a}, so what a model is told "
            "is lost or rewritten; put the model's own tokenizer there"
        )


def _find_replaced_texts(found: object) -> Iterator[str]:
    """The texts that a step puts others in the place of, or the words of an expression for them."""
    if isinstance(found, dict):
        step = cast("dict[str, Any]", found)
        pattern = step.get("pattern")
        alters = step.get("type") == "Replace" or step.get("behavior") == "Removed"
        if isinstance(pattern, dict) and alters:
            written = cast("dict[str, object]", pattern)
            yield str(written.get("String", ""))
            yield _SYNTAX.sub(" ", str(written.get("Regex", "")))
        for inner in (*(step.get("normalizers") or ()), *(step.get("pretokenizers") or ())):
            yield from _find_replaced_texts(inner)
