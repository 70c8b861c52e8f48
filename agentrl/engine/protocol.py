"""The protocol between whoever wants tokens sampled and whoever samples them.

What of an engine's memory is there, for one that shares its device with a trainer:

    serving ─ release ─▶ released ─ resume ─▶ resumed ─ new weights ─▶ loaded ─ go on ─▶ serving
                                                       (other kinds need none)

Each kind of memory goes round by itself; what is asked for out of turn is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import EngineError
from agentrl.types import Completion, EpisodeSession, Sampling
from agentrl.weights.source import WeightSource

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How an engine is; counters run from its start."""

    alive: bool
    version: int
    """The policy version that the next token is sampled under."""
    running: int = 0
    waiting: int = 0
    prefill_tokens: int = 0
    """Prompt tokens that were computed."""
    cached_tokens: int = 0
    """Prompt tokens that were not, because their keys and values were there."""
    sampled_tokens: int = 0


class Engine(Protocol):
    """Samples tokens. Every error is an EngineError; every call ends by its deadline."""

    vocab_size: int
    context_length: int
    """Most tokens that a prompt and its completion may have together."""
    honours_seeds: bool
    """True if a completion is a function of (weights, ids, sampling, batch shape)."""

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        """Sample one completion of `ids`; requests run together, an abandoned one is aborted."""
        ...

    async def end_session(self, session: EpisodeSession) -> None:
        """Forget what is kept for the session; unknown sessions are fine."""
        ...

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Take new weights and serve them as `version`, which must be above the current one.

        Raises EngineError if a tensor is missing, unknown or of another shape; then the old
        weights and the old version go on serving.
        """
        ...

    async def pause(self) -> None:
        """Stop sampling; running requests freeze, new ones wait."""
        ...

    async def resume(self) -> None:
        """Go on after `pause`."""
        ...

    async def release_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        """Give up memory of a paused engine, so that a trainer on its device can have it.

        Raises EngineError, as `resume_memory` does, for what is not at that stage.
        """
        ...

    async def resume_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        """Take memory back; weights have no values until `update_weights`, which `resume` needs."""
        ...

    async def abort(self, session: EpisodeSession) -> None:
        """End the session's running request; it returns its ids so far with ABORT."""
        ...

    async def health(self) -> Health:
        """State and counters."""
        ...

    async def aclose(self) -> None:
        """Stop; running requests raise EngineError. A second call does nothing."""
        ...


def check_request(
    ids: Sequence[int] | NDArray[np.int64],
    sampling: Sampling,
    *,
    vocab_size: int,
    context_length: int,
) -> None:
    """Raise EngineError for what no engine can sample, or would have to cut.

    An id outside the vocabulary ends a whole server.
    """
    ids_T = np.asarray(ids)
    if ids_T.ndim != 1 or not len(ids_T):
        raise EngineError("got an empty prompt; send at least one id")
    low, high = int(ids_T.min()), int(ids_T.max())
    if low < 0 or high >= vocab_size:
        raise EngineError(
            f"got id {low if low < 0 else high}, expected 0 to {vocab_size - 1}; use the "
            "tokenizer of the engine's model"
        )
    if len(ids_T) >= context_length:
        raise EngineError(
            f"got {len(ids_T)} tokens, but the context holds {context_length} with the completion; "
            "end the episode earlier or raise engine.context_length"
        )
    if sampling.max_new_tokens < 1 or sampling.temperature < 0:
        raise EngineError(
            f"cannot sample {sampling.max_new_tokens} tokens at temperature "
            f"{sampling.temperature}; give at least 1 token and no negative temperature"
        )


def paused_s(engine: Engine) -> float:
    """Seconds that the engine was paused in all, now included: its `paused_s`, 0 without one."""
    return float(getattr(engine, "paused_s", 0.0))


def capacity_tokens(engine: Engine) -> int | None:
    """Tokens that the engine's cache holds now: its `capacity_tokens`, None where it says none."""
    capacity: int | None = getattr(engine, "capacity_tokens", None)
    return capacity


def cache_fill_s(engine: Engine) -> float | None:
    """Seconds that it needs to compute a full cache: its `cache_fill_s`, None if not measured."""
    seconds: float | None = getattr(engine, "cache_fill_s", None)
    return seconds


def check_version(version: int, now: int) -> None:
    """Raise EngineError for weights that are no newer than those that are served."""
    if version <= now:
        raise EngineError(f"got weights of version {version}, expected one above {now}")
