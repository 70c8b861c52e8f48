"""`flaky_engine`: an engine that fails, answers wrongly or is late where a test wants it to."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from agentrl.engine.protocol import Engine
from agentrl.types import Completion, EpisodeSession, Sampling

E = TypeVar("E", bound=Engine)

Blow = Exception | Completion | float | None
"""Raised, answered, waited for in seconds before the engine's own answer, or nothing at all."""


def flaky_engine(engine: E, strike: Callable[[EpisodeSession], Blow]) -> E:
    """The same engine, of which `strike` is asked at each request what befalls it.

    Whatever else the engine does stays as it is: pauses, versions, memory, its counters.

        failures = iter([EngineError("the server answered 500")] * 3)
        engine = flaky_engine(engine, lambda session: next(failures, None))
    """
    answer = engine.generate

    async def generate(
        ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        blow = strike(session)
        if isinstance(blow, Exception):
            raise blow
        if isinstance(blow, Completion):
            return blow
        if blow is not None:
            await asyncio.sleep(blow)
        return await answer(ids, sampling, session)

    setattr(engine, "generate", generate)  # noqa: B010  # a type checker refuses a method's change
    return engine
