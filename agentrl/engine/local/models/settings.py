"""The numbers of a model's config: what they may be, and what its files leave possible."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (parts of torch and transformers are not typed)

import contextlib
import json
import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, cast

from transformers import PreTrainedModel
from typing_extensions import TypeIs

from agentrl.errors import ConfigError

_LAYERS: Final = r"^(?:num_hidden_layers|num_layers|n_layers?)$"
_EXPERTS: Final = r"(?:^|_)experts$"
_SIDES: Final = (
    r"(?<!window)(?<!chunk)(?<!block)_(?:size|dim|heads|rank)$|^(?:n_embd|n_heads?|n_inner|d_\w+)$"
)
_NEEDED: Final = (
    r"^(?:hidden_size|vocab_size|head_dim|n_embd|n_heads?|n_layers?|num_(?:hidden_)?layers"
    r"|num_(?:attention|key_value)_heads)$"
)
_SHARES: Final = r"^(?:partial_rotary_factor|rotary_pct)$"
_EPSILONS: Final = r"(?:^|_)eps(?:ilon)?$"
_POSITIONS: Final = r"^(?:\w*max_position_embeddings|n_positions|max_seq_len\w*)$"
_IN_ROPE: Final = re.compile(r"(?:^|\.)rope_(?:parameters|scaling)\.")
_BASES: Final = r"^(?:rope_theta|rotary_emb_base|rope_\w*base_freq)$"


def check_numbers(path: Path, raw: object, shapes: Collection[tuple[int, ...]]) -> None:
    """Raise ConfigError for numbers that no model has, or none with tensors of these shapes.

    To build a model of sizes that its files cannot have takes forever: a layer has one tensor at
    least, a router a row for each expert, and no side of a tensor is longer than it has numbers.
    """
    largest = max(map(math.prod, shapes), default=0)
    longest = max((side for shape in shapes for side in shape), default=0)
    any_low = -math.inf
    bounds = (
        (_NEEDED, 1, math.inf, "it is expected to be at least 1"),
        (_LAYERS, any_low, len(shapes), f"the files have {len(shapes):,} tensors"),
        (_EXPERTS, any_low, longest, f"no tensor in the files has a side of more than {longest:,}"),
        (_SIDES, any_low, largest, f"no tensor in the files has more than {largest:,} numbers"),
        (_SHARES, 0, 1, "it is a share"),
        (_EPSILONS, 0, 1, "it is expected to be between 0 and 1"),
        (_POSITIONS, any_low, 2**31, "places are told apart up to 2,147,483,648"),
    )
    for key, value in settings_of(raw):
        name = key.rpartition(".")[2]
        if re.search(_BASES, name) and not _is_base(value, may_lack=not _IN_ROPE.search(key)):
            raise ConfigError(_wrong(path, key, value, "it is expected to be a number above 0"))
        for pattern, least, most, why in bounds:
            if _is_number(value) and not least <= value <= most and re.search(pattern, name):
                raise ConfigError(_wrong(path, key, value, why))


def check_frequencies(folder: Path, outline: PreTrainedModel) -> None:
    """Raise ConfigError if positions are turned by frequencies that are no numbers, or backwards.

    They follow from the config alone, by the model's own code.
    """
    kinds = {type(module): module for module in outline.modules() if hasattr(module, "config")}
    for kind, module in kinds.items():
        if not any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False)):
            continue
        with contextlib.suppress(TypeError):  # it takes other arguments: a pass will tell
            made = kind(module.config)
            for name, buffer in made.named_buffers():
                if not (buffer.isfinite() & (buffer >= 0)).all():
                    raise ConfigError(
                        f"{folder / 'config.json'}: {_rope_of(outline)} gives positions "
                        f"frequencies ({name}) that are not finite or below 0; correct it, or "
                        "download the config again"
                    )


def settings_of(raw: object, inside: str = "") -> Iterator[tuple[str, object]]:
    """The settings of a config and of the configs in it, by dotted key."""
    if isinstance(raw, dict):
        for key, value in cast("dict[str, object]", raw).items():
            yield f"{inside}{key}", value
            yield from settings_of(value, f"{inside}{key}.")


def _is_number(value: object) -> TypeIs[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_base(value: object, *, may_lack: bool) -> bool:
    """True for the base of rotary frequencies; not every model has one."""
    return 0 < value < math.inf if _is_number(value) else value is None and may_lack


def _wrong(path: Path, key: str, value: object, why: str) -> str:
    said = f"{value:g}" if _is_number(value) else json.dumps(value)[:60]
    return f"{path}: {key} is {said}, but {why}; download all files again, or correct the config"


def _rope_of(outline: PreTrainedModel) -> str:
    found = getattr(outline.config, "rope_parameters", None)
    return f"rope_parameters {json.dumps(found, default=str)[:200]}"
