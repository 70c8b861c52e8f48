"""Preference pairs: from a file to the ids of two conversations each, and a share held out.

    {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}

Each of the three is a text, or a list of messages in their usual JSON form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from agentrl.envs.tasks import parse_text_or_messages, read_json_lines
from agentrl.errors import ConfigError
from agentrl.rollout import derive_seed
from agentrl.tokens import Renderer
from agentrl.types import Message, Role
from agentrl.types.episode import require_utf8

if TYPE_CHECKING:
    from agentrl.trainer.reward_trainer import IdPair

_ROLES: Final[Mapping[str, Role]] = {
    "prompt": "user",
    "chosen": "assistant",
    "rejected": "assistant",
}
"""The keys of a line, and who says what is a text only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Of two answers the better one, and the other."""

    where: str
    """The file and the line, for messages."""
    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]


def read_preferences(path: Path) -> list[Preference]:
    """The pairs of a JSONL file.

    Raises:
        ConfigError: it is missing or empty, or a line is no pair.
    """
    found = [_parse_preference(item, where) for where, item in read_json_lines(path, "pairs")]
    if not found:
        raise ConfigError(f"{path} has no pairs; write one a line: {', '.join(_ROLES)}")
    return found


def encode(pairs: Sequence[Preference], renderer: Renderer, longest: int) -> "list[IdPair]":
    """The ids of each pair's conversations, as the verifier `reward_model` renders them.

    Raises:
        ConfigError: one has more than `longest` tokens, or the chat template makes no difference
            between them or refuses them.
    """
    return [_encode_preference_pair(pair, renderer, longest) for pair in pairs]


def split(
    pairs: Sequence[Preference], ids: "Sequence[IdPair]", *, share: float, seed: int
) -> "tuple[list[IdPair], list[IdPair]]":
    """What is trained on, and what is held out: all pairs of prompts that the seed chooses.

    Raises:
        ConfigError: all pairs have one prompt.
    """
    prompts = list(dict.fromkeys(pair.prompt for pair in pairs))
    if len(prompts) < 2:
        raise ConfigError(
            f"{pairs[0].where}, and all that follow, have the same prompt, expected at least two: "
            "what is measured must not be what is trained on"
        )
    number = min(max(1, round(share * len(prompts))), len(prompts) - 1)
    rng = np.random.default_rng(derive_seed(seed, "heldout"))
    order: list[int] = rng.permutation(len(prompts)).tolist()
    apart = {prompts[i] for i in order[:number]}
    both = list(zip(pairs, ids, strict=True))
    return (
        [found for pair, found in both if pair.prompt not in apart],
        [found for pair, found in both if pair.prompt in apart],
    )


def _parse_preference(item: object, where: str) -> Preference:
    fields = cast("dict[str, object]", item) if isinstance(item, dict) else {}
    if missing := [key for key in _ROLES if key not in fields]:
        raise ConfigError(f"{where} has no {missing[0]}; the keys are {', '.join(_ROLES)}")
    said = {key: _parse_preference_messages(fields[key], key, where) for key in _ROLES}
    return Preference(where=where, **said)


def _parse_preference_messages(value: object, key: str, where: str) -> tuple[Message, ...]:
    said = parse_text_or_messages(value, key, where)
    messages = (Message(role=_ROLES[key], content=said),) if isinstance(said, str) else said
    try:
        for message in messages:
            require_utf8(message.content, f"{where}: {key}")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return messages


def _encode_preference_pair(pair: Preference, renderer: Renderer, longest: int) -> "IdPair":
    ids = [
        _encode_conversation(pair, answer, renderer, longest) for answer in ("chosen", "rejected")
    ]
    if ids[0] == ids[1]:
        raise ConfigError(
            f"{pair.where}: chosen and rejected are the same to the model; leave the line out, or "
            "correct one of them"
        )
    return ids[0], ids[1]


def _encode_conversation(
    pair: Preference, answer: str, renderer: Renderer, longest: int
) -> list[int]:
    said: tuple[Message, ...] = getattr(pair, answer)
    try:
        ids = renderer.conversation((*pair.prompt, *said))
    except ConfigError as error:
        raise ConfigError(f"{pair.where}: {error}") from error
    if len(ids) > longest:
        raise ConfigError(
            f"{pair.where}: prompt and {answer} have {len(ids):,} tokens, but the model takes "
            f"{longest:,}; shorten them, or leave the line out"
        )
    return ids
