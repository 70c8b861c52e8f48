"""What of an engine's memory is there, for one that shares its device with a trainer.

    serving ─ release ─▶ released ─ resume ─▶ resumed ─ new weights ─▶ loaded ─ go on ─▶ serving
                                                       (other kinds need none)

Each kind of memory goes round by itself; what is asked for out of turn is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, get_args

from agentrl.errors import EngineError

MemoryTag = Literal["weights", "kv_cache", "cuda_graph"]
MEMORY_TAGS: tuple[MemoryTag, ...] = get_args(MemoryTag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What an engine holds of the memory of each device that it is on."""

    longest: int
    """Tokens of the longest sequence."""
    cached_tokens: int
    """Tokens whose keys and values are there at once."""
    dtype: str
    """The number format of its weights; auto: that of the trainer's."""
    shares_weights: bool = False
    """It samples with the trainer's own, where the formats agree."""
    share_device: bool = False
    """Engine and trainer take turns on one device."""
    num_devices: int = 1
    """Over which it is spread; 0: it is elsewhere, and holds nothing here."""


class Stage(StrEnum):
    """Where a kind of memory is on its way round."""

    SERVING = "serving"
    RELEASED = "released"
    RESUMED = "resumed"
    LOADED = "loaded"


class MemoryStages:
    """The stage of each kind of memory; every method changes all that it names, or nothing."""

    def __init__(self) -> None:
        self._stages: dict[MemoryTag, Stage] = dict.fromkeys(MEMORY_TAGS, Stage.SERVING)

    def __getitem__(self, tag: MemoryTag) -> Stage:
        """The stage of one kind."""
        return self._stages[tag]

    def release(self, tags: Sequence[MemoryTag]) -> None:
        """Give up what serves, or is about to."""
        self._check_memory_stages(tags, (Stage.SERVING, Stage.LOADED), "released; resume it first")
        self._stages |= dict.fromkeys(tags, Stage.RELEASED)

    def resume(self, tags: Sequence[MemoryTag]) -> None:
        """Take back what was released: weights without their values, a cache empty."""
        self._check_memory_stages(tags, (Stage.RELEASED,), "resumed, since it was not released")
        for tag in tags:
            self._stages[tag] = Stage.RESUMED if tag == "weights" else Stage.LOADED

    def check_loadable(self) -> None:
        """Refuse weights that have no place."""
        self._check_memory_stages(
            ["weights"], tuple(set(Stage) - {Stage.RELEASED}), "loaded; resume it first"
        )

    def loaded(self) -> None:
        """New weights have come."""
        if self._stages["weights"] is Stage.RESUMED:
            self._stages["weights"] = Stage.LOADED

    def serve(self) -> None:
        """Sample again, with everything in its place."""
        ready = (Stage.LOADED, Stage.SERVING)
        released = "used; call resume_memory, then update_weights"
        self._check_memory_stages(MEMORY_TAGS, ready, released)
        self._stages = dict.fromkeys(MEMORY_TAGS, Stage.SERVING)

    def _check_memory_stages(
        self, tags: Sequence[MemoryTag], allowed: Sequence[Stage], what: str
    ) -> None:
        for tag in tags:
            if self._stages[tag] not in allowed:
                raise EngineError(
                    f"the engine's {tag} memory is {self._stages[tag]} and cannot be {what}"
                )
