import asyncio
import random
from collections.abc import Sequence

import numpy as np
import pytest

from agentrl.errors import EngineError
from agentrl.rollout.fixed_order import Lockstep
from agentrl.tokens import seal
from agentrl.types import Completion, EpisodeSession, Sampling, StopReason

SAMPLING = Sampling(max_new_tokens=1)


class RecordingEngine:
    """Notes the order in which requests arrive, and answers after random waits."""

    def __init__(self, seed: int) -> None:
        self.arrivals: list[str] = []
        self.paused_arrivals: list[bool] = []
        self._random = random.Random(seed)
        self._paused = False

    async def pause(self) -> None:
        self._paused = True

    async def resume(self) -> None:
        self._paused = False

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        self.arrivals.append(session.key)
        self.paused_arrivals.append(self._paused)
        await asyncio.sleep(self._random.random() / 200)
        one = np.ones(1, dtype=np.int32)
        return seal(one, np.zeros(1, np.float32), one, StopReason.STOP)


async def play(engine: RecordingEngine, noise: int) -> None:
    gate = Lockstep(engine)  # type: ignore[arg-type]  # the three methods that it uses
    gate.join(6)
    waits = random.Random(noise)

    async def episode(number: int) -> None:
        try:
            for _ in range(1 + number % 3):
                await asyncio.sleep(waits.random() / 200)
                await gate.generate([1], SAMPLING, EpisodeSession(f"e{number}"))
        finally:
            gate.leave()

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(episode(number))


async def test_the_order_of_arrival_does_not_depend_on_timing() -> None:
    engines = [RecordingEngine(seed) for seed in range(4)]
    for noise, engine in enumerate(engines):
        await play(engine, noise)
    rounds = ["e0", "e1", "e2", "e3", "e4", "e5", "e1", "e2", "e4", "e5", "e2", "e5"]
    assert [engine.arrivals for engine in engines] == [rounds] * 4
    assert all(all(engine.paused_arrivals) for engine in engines)


async def test_an_engine_that_cannot_pause_fails_every_request_of_the_round() -> None:
    class Dead(RecordingEngine):
        async def pause(self) -> None:
            raise EngineError("the engine's thread died")

    gate = Lockstep(Dead(0))  # type: ignore[arg-type]  # the three methods that it uses
    gate.join(2)
    async with asyncio.timeout(20):
        answers = await asyncio.gather(
            *(gate.generate([1], SAMPLING, EpisodeSession(f"e{i}")) for i in range(2)),
            return_exceptions=True,
        )
    assert [str(answer) for answer in answers] == ["the engine's thread died"] * 2


async def test_a_cancelled_request_takes_no_part_in_a_round() -> None:
    engine = RecordingEngine(0)
    gate = Lockstep(engine)  # type: ignore[arg-type]  # the three methods that it uses
    gate.join(2)
    gone = asyncio.create_task(gate.generate([1], SAMPLING, EpisodeSession("gone")))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gate.leave()
    await gate.generate([1], SAMPLING, EpisodeSession("stays"))
    assert engine.arrivals == ["stays"]


async def test_a_request_that_is_cancelled_in_its_round_stops_in_the_engine() -> None:
    stopped: list[str] = []

    class Endless(RecordingEngine):
        async def generate(
            self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
        ) -> Completion:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append(session.key)
            raise AssertionError

    gate = Lockstep(Endless(0))  # type: ignore[arg-type]  # the three methods that it uses
    gate.join(1)
    work = asyncio.create_task(gate.generate([1], SAMPLING, EpisodeSession("e0")))
    await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await gate.drain()
    assert stopped == ["e0"]
