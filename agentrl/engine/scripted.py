"""`ScriptedEngine`: an agent's turns as completions, for tests, demonstrations and evaluation.

What it returns went through the same rendering, loop and record as a model's tokens.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import compress, count
from typing import Protocol

import numpy as np

from agentrl.aio import PauseWatch
from agentrl.boundary import user_code
from agentrl.engine.protocol import MEMORY_TAGS, Health, MemoryStages, MemoryTag, check_version
from agentrl.errors import EngineError
from agentrl.tokens.hash_chain import seal
from agentrl.types import (
    Agent,
    AssistantTurn,
    Completion,
    EpisodeSession,
    EpisodeView,
    Sampling,
    StopReason,
)
from agentrl.weights.source import WeightSource


class TurnRenderer(Protocol):
    """What turns an assistant's turn into the ids that a model would have sampled."""

    def assistant(self, turn: AssistantTurn) -> list[int]:
        """The ids of the turn, the stop token included."""
        ...


class ScriptedEngine:
    """Lets an agent (or a function) play the policy's part; every logprob is 0.

    `latency_s` is waited for before each answer.
    """

    honours_seeds = True

    def __init__(
        self,
        agent: Agent | Callable[[EpisodeView], AssistantTurn],
        renderer: TurnRenderer,
        *,
        vocab_size: int = 2**31 - 1,
        context_length: int = 2**20,
        latency_s: float = 0.0,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self._act = agent.act if isinstance(agent, Agent) else agent
        self._renderer = renderer
        self._latency_s = latency_s
        self._version = 0
        self._sampled = 0
        self._closed = False
        self._going = asyncio.Event()
        self._going.set()
        self._pauses = PauseWatch()
        self._stops: dict[str, asyncio.Event] = {}
        self._memory = MemoryStages()

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        """The agent's next turn, given the session's view of the conversation."""
        self._check_session_has_view(session)
        if self._latency_s or not self._going.is_set():
            # Wait for the latency and while paused; true if aborted meanwhile.
            stop = self._stops.setdefault(session.key, asyncio.Event())
            try:
                if self._latency_s:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._latency_s):
                            await stop.wait()
                await self._going.wait()
            finally:
                self._stops.pop(session.key, None)
            aborted = stop.is_set()
            self._check_session_has_view(session)
            if aborted:
                return seal([], [], [], StopReason.ABORT)
        limit = min(sampling.max_new_tokens, self.context_length - len(ids))
        return self._make_scripted_completion(session, sampling.stop_ids, limit)

    @property
    def paused_s(self) -> float:
        """Seconds that it was paused in all, now included."""
        return self._pauses.total_s

    async def end_session(self, session: EpisodeSession) -> None:
        """Nothing is kept for sessions."""

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Take the version; there are no weights."""
        check_version(version, self._version)
        self._memory.check_loadable()
        self._memory.loaded()
        self._version = version

    async def pause(self) -> None:
        """Let answers wait."""
        self._going.clear()
        self._pauses.pause()

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._memory.serve()
        self._going.set()
        self._pauses.resume()

    async def release_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        """Nothing is held; what is out of turn is refused all the same."""
        self._memory.release(tags)

    async def resume_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        """As `release_memory`."""
        self._memory.resume(tags)

    async def abort(self, session: EpisodeSession) -> None:
        """End the session's waiting request without a token."""
        if session.key in self._stops:
            self._stops[session.key].set()

    async def health(self) -> Health:
        """State and counters."""
        return Health(
            alive=not self._closed,
            version=self._version,
            running=len(self._stops),
            sampled_tokens=self._sampled,
        )

    async def aclose(self) -> None:
        """Stop; waiting requests raise EngineError."""
        self._closed = True
        self._going.set()
        for stop in self._stops.values():
            stop.set()

    def _check_session_has_view(self, session: EpisodeSession) -> None:
        if self._closed:
            raise EngineError("the engine was closed")
        if session.view is None:
            raise EngineError(
                f"session {session.key!r} has no view, but a scripted engine answers from the "
                "conversation; give Session(view=...)"
            )

    def _make_scripted_completion(
        self, session: EpisodeSession, stop_ids: frozenset[int], limit: int
    ) -> Completion:
        assert session.view is not None
        with user_code("the agent's act"):
            turn = self._act(session.view())
        ids = self._renderer.assistant(turn)
        is_stop = map(stop_ids.__contains__, ids)
        end = next(compress(count(1), is_stop), limit + 1)
        reason = StopReason.LENGTH if end > limit else StopReason.STOP
        ids = ids[: min(limit, end)]
        self._sampled += len(ids)
        num = len(ids)
        return seal(ids, np.zeros(num), np.zeros(num, np.int32) + self._version, reason)
