"""The experts of a mixture of experts, as a side channel of the token record.

A row stands at the token that its experts helped to predict, like a logprob: what an engine
computed at position t is known when token t + 1 is.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from agentrl.engine.local.models.files import read_json
from agentrl.errors import ConfigError

CHANNEL = "routed_experts"
"""[T, layers, chosen]"""
_COUNT = re.compile(r"(?:^|_)(?:num|n)(?:_local|_routed)?_experts$")
_CHOSEN = re.compile(r"(?:experts_per_tok(?:en)?|moe_(?:top_?)?k|top_?k_experts)$")


class ExpertChannels(TypedDict, total=False):
    """Arguments of `seal`."""

    channels: Mapping[str, NDArray[np.generic]]
    prompt_channels: Mapping[str, NDArray[np.generic]]


def expert_channels(experts: NDArray[np.integer], num_prompt: int) -> ExpertChannels:
    """Of a completion, from the experts of all tokens but its last, [T - 1, layers, chosen]."""
    predicted = np.pad(experts.astype(np.int16), ((1, 0), (0, 0), (0, 0)))
    return {
        "channels": {CHANNEL: predicted[num_prompt:]},
        "prompt_channels": {CHANNEL: predicted[:num_prompt]},
    }


def expert_counts(settings: Mapping[str, object]) -> frozenset[int]:
    """How many experts a model's configuration gives its layers, in parts of it too.

    Empty for a dense model.
    """
    return frozenset(n for n in _find_integers_by_key_pattern(settings, _COUNT) if n > 1)


def experts_per_token(folder: Path) -> int:
    """How many experts a model folder's model sends a token to in each layer; 0 if it is dense.

    Raises ConfigError for a mixture that does not say it.
    """
    settings = cast("dict[str, object]", read_json(folder / "config.json"))
    if not expert_counts(settings):
        return 0
    number = max(_find_integers_by_key_pattern(settings, _CHOSEN), default=0)
    if not number:
        raise ConfigError(
            f"{folder / 'config.json'}: names experts, but not how many a token goes to "
            "(num_experts_per_tok), so the experts that a server records cannot be read; use the "
            "local engine"
        )
    return number


def check_chosen(folder: Path) -> None:
    """Raise ConfigError for a mixture whose tokens go to more experts than there are."""
    settings = cast("dict[str, object]", read_json(folder / "config.json"))
    most, chosen = (
        max(expert_counts(settings), default=0),
        max(_find_integers_by_key_pattern(settings, _CHOSEN), default=0),
    )
    if 0 < most < chosen:
        raise ConfigError(
            f"{folder / 'config.json'}: a token goes to {chosen} experts, but a layer has {most}; "
            "download all files again, or correct the config"
        )


def _find_integers_by_key_pattern(
    settings: Mapping[str, object], key: re.Pattern[str]
) -> Iterator[int]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _find_integers_by_key_pattern(cast("Mapping[str, object]", value), key)
        elif key.search(str(name)):
            values = cast("list[object]", value if isinstance(value, list) else [value])
            yield from (n for n in values if isinstance(n, int))
