"""The numbers of a model's config: what they may be, and what its files leave possible."""

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, cast

from typing_extensions import TypeIs

from agentrl.errors import ConfigError

_LAYERS: Final = r"^(?:num_hidden_layers|num_layers|n_layers?)$"
_EXPERTS: Final = r"(?:^|_)experts$"
_SIDES: Final = (
    r"(?<!window)(?<!chunk)(?<!block)_(?:size|dim|heads|rank)$|^(?:n_embd|n_heads?|n_inner|d_\w+)$"
)
_NEEDED: Final = (
    r"^(?:hidden_size|vocab_size|head_dim|n_embd|n_heads?|n_layers?|num_(?:hidden_)?layers"
    r"|num_(?:attention_|key_value_)?heads)$"
)
_SHARES: Final = r"^(?:partial_rotary_factor|rotary_pct)$"
_EPSILONS: Final = r"(?:^|_)eps(?:ilon)?$"
_POSITIONS: Final = r"^(?:\w*max_position_embeddings|n_positions|max_seq_len\w*)$"
_WINDOWS: Final = r"^(?:sliding_window(?:_size)?|attention_chunk_size)$"
_FACTORS: Final = (
    r"^(?:(?:attention_)?factor|(?:low|high)_freq_factor|(?:long|short)_(?:factor|mscale)"
    r"|\w*softcapping|query_pre_attn_scalar|logits_scaling)$"
)
_IN_ROPE: Final = re.compile(r"(?:^|\.)rope_(?:parameters|scaling)\.")
_BASES: Final = r"^(?:rope_theta|rotary_emb_base|rope_\w*base_freq)$"


def check_numbers(path: Path, raw: object) -> None:
    """Raise ConfigError for numbers that no model has."""
    bounds = (
        (_NEEDED, 1, math.inf, "it is expected to be at least 1"),
        (_SHARES, 0, 1, "it is a share"),
        (_EPSILONS, 0, 1, "it is expected to be between 0 and 1"),
        (_POSITIONS, 1, 2**31, "places are told apart from 1 up to 2,147,483,648"),
    )
    _check_settings_in_bounds(path, raw, bounds)
    settings = dict(settings_of(raw))
    for key, value in settings.items():
        name = key.rpartition(".")[2]
        used = settings.get(f"{key.removesuffix(name)}use_{name}") is not False
        lacks = value is None and not (_IN_ROPE.search(key) and re.search(_BASES, name))
        if re.search(f"{_BASES}|{_FACTORS}", name) and not lacks and not _is_above_zero(value):
            raise ConfigError(
                _explain_wrong_setting(path, key, value, "it is expected to be a number above 0")
            )
        # Not every model has a window.
        counts = used and value is not None and re.search(f"{_POSITIONS}|{_WINDOWS}", name)
        if counts and not (_is_number(value) and value > 0 and value == int(value)):
            raise ConfigError(
                _explain_wrong_setting(path, key, value, "it is expected to be a count above 0")
            )


def check_sizes(path: Path, raw: object, shapes: Collection[tuple[int, ...]]) -> None:
    """Raise ConfigError for numbers that no model with tensors of these shapes has.

    To build a model of sizes that its files cannot have takes forever: a layer has one tensor at
    least, a router a row for each expert, and no side of a tensor is longer than it has numbers.
    """
    largest = max(map(math.prod, shapes), default=0)
    longest = max((side for shape in shapes for side in shape), default=0)
    low = -math.inf
    bounds = (
        (_LAYERS, low, len(shapes), f"the files have {len(shapes):,} tensors"),
        (_EXPERTS, low, longest, f"no tensor in the files has a side of more than {longest:,}"),
        (_SIDES, low, largest, f"no tensor in the files has more than {largest:,} numbers"),
    )
    _check_settings_in_bounds(path, raw, bounds)


def _check_settings_in_bounds(
    path: Path, raw: object, bounds: Sequence[tuple[str, float, float, str]]
) -> None:
    for key, value in settings_of(raw):
        for pattern, least, most, why in bounds:
            named = re.search(pattern, key.rpartition(".")[2])
            if named and _is_number(value) and not least <= value <= most:
                raise ConfigError(_explain_wrong_setting(path, key, value, why))


def settings_of(raw: object, inside: str = "") -> Iterator[tuple[str, object]]:
    """The settings of a config and of the configs in it, by dotted key."""
    if isinstance(raw, dict):
        for key, value in cast("dict[str, object]", raw).items():
            yield f"{inside}{key}", value
            yield from settings_of(value, f"{inside}{key}.")


def _is_number(value: object) -> TypeIs[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_above_zero(value: object) -> bool:
    """True for a base of rotary frequencies or a factor, and for a list of factors."""
    if isinstance(value, list):
        return all(map(_is_above_zero, cast("list[object]", value)))
    return _is_number(value) and 0 < value < math.inf


def _explain_wrong_setting(path: Path, key: str, value: object, why: str) -> str:
    said = f"{value:g}" if _is_number(value) else json.dumps(value)[:60]
    return f"{path}: {key} is {said}, but {why}; download all files again, or correct the config"
