"""Episodes that are played in other processes: the same ones, and what becomes of them there."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.aio import PauseWatch
from agentrl.envs import ToolEnv
from agentrl.envs.calculator import Calculator
from agentrl.errors import ConfigError
from agentrl.rollout import Codec
from agentrl.rollout.player import pickle_envs
from agentrl.rollout.player_pool import PlayerPool
from agentrl.types import (
    Episode,
    EpisodeStop,
    Invalid,
    Score,
)
from agentrl.workers.channel import Channel
from agentrl.workers.executors import ProcessWorkers
from agentrl.workers.spawner import Spawner
from tests.integration.rollout.played import jobs, settings
from tests.integration.rollout.talk import Dice, Odd, Talk, collect, maker, troubled

DEADLINE_S = 2.0


class Near(ProcessWorkers):
    """Workers in processes of this machine, one of which can be replaced."""

    home = "127.0.0.1"

    def __init__(self, size: int) -> None:
        self._made = Spawner(
            memory_bytes=None,
            max_result_bytes=1 << 20,
            preload=("agentrl.rollout.player", __name__),
            deadline_s=DEADLINE_S,
        )
        self.channels: list[Channel] = [self._made.spawn() for _ in range(size)]
        super().__init__(self._made, self.channels)

    async def replace(self, number: int) -> None:
        self._made.kill(self.channels[number])
        self.channels[number].close()
        self.channels[number] = self._made.spawn()


@asynccontextmanager
async def players(
    codec: Codec, env: type[ToolEnv] = Talk, size: int = 2
) -> AsyncGenerator[PlayerPool]:
    pool = PlayerPool(
        Near(size), codec=codec, envs=pickle_envs([maker(env)]), deadline_s=DEADLINE_S
    )
    try:
        await pool.start()
        yield pool
    finally:
        await pool.aclose()


def digests(episodes: Sequence[Episode]) -> list[tuple[str, list[bytes], float]]:
    return [(e.id, [bytes(s.digest) for s in e.segments], e.reward) for e in episodes]


@pytest.mark.parametrize("fixed_order", [False, True])
async def test_they_are_the_same_as_here(codec: Codec, *, fixed_order: bool) -> None:
    here, _ = await collect(codec, Dice(codec), fixed_order=fixed_order)
    async with players(codec) as pool:
        there, invalid = await collect(
            codec, Dice(codec), pool.make_runner, fixed_order=fixed_order
        )
    assert digests(there) == digests(here)
    assert len({e.messages for e in there}) == 12
    assert invalid == []
    assert {e.outcome.value for e in there if isinstance(e.outcome, Score)} > {0.0}


@pytest.mark.parametrize(
    ("trouble", "said"),
    [("die", "was killed by SIGKILL"), ("stand", "stood still for 2 s and was killed")],
)
async def test_one_that_ends_costs_attempts_alone(
    codec: Codec, tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: str, said: str
) -> None:
    here, _ = await collect(codec, Dice(codec))
    async with players(codec) as pool:
        played = troubled(trouble, tmp_path / "mark")
        there, invalid = await collect(codec, Dice(codec), pool.make_runner, played)
    assert len(there) == 12
    assert [e.id.rpartition("-")[0] for e in there] == [e.id.rpartition("-")[0] for e in here]
    (line,) = caplog.messages
    assert said in line
    assert f"{len(invalid)} episodes were there" in line
    assert {said in e.outcome.reason for e in invalid if isinstance(e.outcome, Invalid)} == {True}
    kept = {e.id: e.segments[0].digest for e in here}
    assert all(e.segments[0].digest == kept[e.id] for e in there if e.attempt == 0)


async def test_what_goes_wrong_in_an_episode_is_said_as_it_is_here(codec: Codec) -> None:
    reasons: list[list[str]] = []
    async with players(codec) as pool:
        for make_runner in (None, pool.make_runner):
            engine = Dice(codec)
            engine.fails_at = 3
            there, invalid = await collect(codec, engine, make_runner, troubled("raise"))
            assert len(there) == 10
            found = [e.outcome.reason for e in invalid if isinstance(e.outcome, Invalid)]
            # A class that travels by its code has no file, so the place is another.
            reasons.append(sorted(reason.partition(" (")[0] for reason in found))
    assert reasons[0] == reasons[1]
    assert len(reasons[0]) == 7
    assert "once" in reasons[0]
    assert sum("KeyError: 'lost'" in reason for reason in reasons[0]) == 6


async def test_time_ends_episodes_there_and_stands_still_in_pauses(codec: Codec) -> None:
    limits = replace(settings().limits, wall_s=0.5)
    async with players(codec, size=1) as pool:
        for watch in (None, PauseWatch()):
            engine = Dice(codec)
            engine.holds, engine.watch = asyncio.Event(), watch
            if watch is not None:
                asyncio.get_running_loop().call_later(1.5, engine.go_on)
            there, _ = await collect(codec, engine, pool.make_runner, jobs(1, Talk), limits=limits)
            stop = EpisodeStop.WALL_TIME if watch is None else EpisodeStop.MAX_TURNS
            assert [e.stop for e in there] == [stop] * 2
            assert engine.num_done == (0 if watch is None else 4)


async def test_what_is_given_up_is_torn_down_there(codec: Codec) -> None:
    engine = Dice(codec)
    engine.holds = asyncio.Event()
    async with players(codec, size=1) as pool:
        task = asyncio.create_task(collect(codec, engine, pool.make_runner, jobs(1, Talk)))
        await engine.is_asked_twice.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.holds = None
        there, _ = await collect(codec, engine, pool.make_runner, jobs(1, Talk))
    assert len(there) == 2


async def test_what_cannot_travel_is_said(codec: Codec, tmp_path: Path) -> None:
    class Held(Talk):
        lock = threading.Lock()

    with pytest.raises(ConfigError, match="env env cannot be sent to the players, since its class"):
        pickle_envs([maker(Held)])
    [(name, pickled)] = pickle_envs([maker(Calculator)])
    moved = pickled.replace(b"envs.calculator", b"envs.calculatro")
    pool = PlayerPool(Near(1), codec=codec, envs=[(name, moved)], deadline_s=DEADLINE_S)
    with pytest.raises(
        ConfigError, match=r"env env cannot be played on 127.0.0.1 \(ModuleNotFound"
    ):
        await pool.start()
    await pool.aclose()
    async with players(codec, Odd, size=1) as there:
        engine = Dice(codec)
        engine.says = '<tool_call>\n{"name": "call_off", "arguments": {}}\n</tool_call>'
        _, invalid = await collect(codec, engine, there.make_runner, jobs(1, Odd), attempts=1)
    reasons = [e.outcome.reason for e in invalid if isinstance(e.outcome, Invalid)]
    assert len(reasons) == 2
    assert "its answer or its messages cannot be pickled" in reasons[0]
