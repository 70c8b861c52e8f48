"""Does a run fit into a device's memory? Said from its configuration; no weight is loaded."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agentrl.config import Config
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.engine.protocol import Footprint
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS
from agentrl.orchestration.kinds import engine_kind
from agentrl.orchestration.model_files import context_length, make_limits
from agentrl.trainer.memory import estimate

C = TypeVar("C", bound=Config)

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]i?)B", re.IGNORECASE)
_MARGIN = 0.05
"""Of the device, for what libraries and fragments take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a run needs of a device that both samples and trains."""

    device_bytes: int
    parts: Mapping[str, int]
    """Bytes at the step's peak, by what they are for."""
    ways_out: Sequence[str] | None
    """Flags with which it would fit; none if it does; None if nothing that is known helps."""

    @property
    def total(self) -> int:
        """All parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """True if there is room, with a margin."""
        return fits_device_memory(self.total, self.device_bytes)

    def to_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "device_bytes": self.device_bytes,
            "parts": dict(self.parts),
            "total": self.total,
            "fits": self.fits,
            "ways_out": None if self.ways_out is None else list(self.ways_out),
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        for name, size in self.parts.items():
            yield f"{name:15s} {size / 1e9:8.2f} GB"
        says = "fits" if self.fits else "does not fit"
        yield f"{'total':15s} {self.total / 1e9:8.2f} GB of {self.device_bytes / 1e9:g} GB: {says}"
        if self.ways_out is None:
            yield (
                "no setting makes it fit: choose a smaller model, more trainer.ranks, or "
                "trainer.offload"
            )
        elif self.ways_out:
            yield f"it fits with {' '.join(self.ways_out)}"


def memory_fit(config: RunConfig, device: str) -> Fit:
    """The need of a run, against a device of a size such as `24GB`.

    Raises:
        ConfigError: the size is none, or the model or its context is wrong.
    """
    device_bytes = parse_size(device)
    parts = _estimate_peak_bytes_by_part(config)
    ways_out: Sequence[str] | None = ()
    if not fits_device_memory(sum(parts.values()), device_bytes):
        ways_out = find_flags_to_fit_memory(
            config,
            device_bytes,
            lambda other: sum(_estimate_peak_bytes_by_part(other).values()),
        )
    return Fit(device_bytes=device_bytes, parts=parts, ways_out=ways_out)


def parse_size(text: str) -> int:
    """Bytes of `24GB` (10^9 each) or `24GiB` (2^30)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--device-memory: got {text!r}, expected a size such as 24GB or 24GiB")
    unit = match["unit"].upper()
    power = "KMGT".index(unit[0]) + 1
    return int(float(match["number"]) * (1024 if unit.endswith("I") else 1000) ** power)


def fits_device_memory(total: int, device_bytes: int) -> bool:
    """True if there is room, with a margin."""
    return total <= device_bytes * (1 - _MARGIN)


def _estimate_peak_bytes_by_part(config: RunConfig) -> Mapping[str, int]:
    return estimate_parts(config, find_footprint(config))


def estimate_parts(config: RunConfig, footprint: Footprint) -> Mapping[str, int]:
    """Bytes of a device at the step's peak, beside an engine that holds so much of it."""
    names = (config.model, config.trainer.reference_model)
    folder, reference = (resolve_model(name, seed=config.seed) if name else None for name in names)
    assert folder is not None, "a run has a model"
    return estimate(folder, config.trainer, footprint, reference).parts


def find_footprint(config: RunConfig) -> Footprint:
    """What the engine of a run holds of its device."""
    folder, rollout = resolve_model(config.model, seed=config.seed), config.rollout
    episodes, most = rollout.tasks_per_step * rollout.group_size, rollout.concurrency
    return engine_kind(config, NO_OBJECTS).footprint(
        config.engine,
        rows=episodes if most == "auto" else min(most, episodes),
        longest=make_limits(config, context_length(config, folder)).max_context_tokens,
    )


def find_flags_to_fit_memory(
    config: RunConfig, device_bytes: int, count_bytes: Callable[[RunConfig], int]
) -> Sequence[str] | None:
    """The settings that are needed, the ones that cost least first; None if all do not do."""
    changes = _list_memory_saving_settings(config)

    def total(keys: Sequence[str]) -> int:
        changed = config
        for key in keys:
            changed = _replace_config_value(changed, key.split("."), changes[key])
        return count_bytes(changed)

    chosen: list[str] = []
    least = total(chosen)
    for key in changes:
        if fits_device_memory(least, device_bytes):
            break
        now = total([*chosen, key])
        if now < least:
            chosen, least = [*chosen, key], now
    if not fits_device_memory(least, device_bytes):
        return None
    for key in tuple(chosen):
        without = [other for other in chosen if other != key]
        if fits_device_memory(total(without), device_bytes):
            chosen = without
    return [f"--{key.replace('_', '-')} {str(changes[key]).lower()}" for key in chosen]


def _list_memory_saving_settings(config: RunConfig) -> dict[str, object]:
    """What saves memory, the least harmful first."""
    folder = resolve_model(config.model, seed=config.seed)
    longest = make_limits(config, context_length(config, folder)).max_context_tokens
    return {
        "trainer.activation_checkpointing": True,
        "trainer.token_budget": min(longest, config.trainer.token_budget),
        "engine.share_device": True,
        "engine.dtype": "bfloat16",
        "engine.slots": min(16, config.engine.slots),
        f"engine.{'vllm' if config.engine.name == 'vllm' else 'sglang'}.kv_tokens": 4 * longest,
        "trainer.optimizer": "adamw8bit",
        "trainer.lora.rank": config.trainer.lora.rank or 16,
        "trainer.lora.publish": "adapter",
        "trainer.lora.dtype": "bfloat16",
    }


def _replace_config_value(config: C, path: Sequence[str], value: object) -> C:
    """The configuration with another value at the path."""
    name, *rest = path
    changed = _replace_config_value(getattr(config, name), rest, value) if rest else value
    return config.model_copy(update={name: changed})
