"""The protocol between whoever wants tokens sampled and whoever samples them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agentrl.engine.memory import MEMORY_TAGS, MemoryTag
from agentrl.errors import EngineError
from agentrl.types import Completion, EpisodeSession, Sampling
from agentrl.weights.source import WeightSource


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


def check_version(version: int, now: int) -> None:
    """Raise EngineError for weights that are no newer than those that are served."""
    if version <= now:
        raise EngineError(f"got weights of version {version}, expected one above {now}")
