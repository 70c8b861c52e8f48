"""Episodes that are stopped in the middle: what is kept of them; nothing waits for them."""

import asyncio
import math
from collections.abc import Sequence

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import ToolEnv
from agentrl.errors import RunError
from agentrl.rollout import (
    Codec,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    PlayedGroup,
)
from agentrl.rollout.driver import Another, RolloutDriver
from agentrl.schedule import Allowance, Schedule, Scheduler
from agentrl.schedule.events import TrainBatch
from agentrl.types import (
    Completion,
    EpisodeSession,
    EpisodeStop,
    Invalid,
    Sampling,
    Score,
    Task,
)
from tests.integration.rollout.played import SERVICES, say_yes


class Hangs(ScriptedEngine):
    """The second turn of the last members never ends."""

    def __init__(self, codec: Codec, slow: Sequence[str]) -> None:
        super().__init__(say_yes, codec.renderer(()), vocab_size=768)
        self.slow = slow
        self.asked: list[str] = []
        self.ended: list[str] = []

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        self.asked.append(session.key)
        await asyncio.sleep(0.01)
        if session.key in self.slow and self.asked.count(session.key) == 2:
            await asyncio.sleep(1000)
        return await super().generate(ids, sampling, session)

    async def end_session(self, session: EpisodeSession) -> None:
        self.ended.append(session.key)


class Twice(ToolEnv):
    """Two turns; ends slowly."""

    tasks = (Task(prompt="unused"),)
    num_open = 0
    left = 2

    async def setup(self) -> None:
        Twice.num_open += 1

    async def teardown(self) -> None:
        try:
            await asyncio.sleep(0.02)
        finally:
            Twice.num_open -= 1

    def reply(self, text: str) -> str | None:
        self.left -= 1
        return "More." if self.left else None

    def score(self, answer: str) -> Score:
        return Score(value=1.0)


def job(place: int) -> GroupJob:
    return GroupJob(
        key=EpisodeKey.first(run=0, step=1, place=place),
        env="env",
        make_env=lambda: Twice(services=SERVICES),
        task=Task(prompt="How long?", id=str(place)),
        split="train",
    )


def make_driver(
    codec: Codec, engine: Hangs, schedule: Schedule, allowance: Allowance, another: Another
) -> RolloutDriver:
    settings = CollectSettings(
        limits=EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=60.0, setup_s=5.0),
        temperature=1.0,
        concurrency=64,
        attempts=1,
        max_invalid_share=0.01,
    )
    return RolloutDriver(
        engine=engine,
        codec=codec,
        settings=settings,
        scheduler=Scheduler(schedule, allowance),
        group_size=schedule.members,
        draw=job,
        another=another,
    )


async def play(
    codec: Codec,
    engine: Hangs,
    schedule: Schedule,
    allowance: Allowance,
    another: Another = lambda ticket, group: None,
) -> list[PlayedGroup]:
    """The groups of the first batch and those that were given up for it."""
    driver = make_driver(codec, engine, schedule, allowance, another)
    try:
        async with asyncio.timeout(10):
            driver.begin()
            while not isinstance(action := await driver.next(), TrainBatch):
                pass
            return driver.take(action.tickets)
    finally:
        await driver.aclose()
        assert Twice.num_open == 0
        assert sorted(engine.ended) == sorted({*engine.asked})


class HalfASecond(Allowance):
    """Is what two members may take once two have ended, however slow the machine is."""

    def patience(self, ended_s: Sequence[float], members: int) -> float:
        return 0.5 if len(ended_s) == 2 else math.inf


SLOW = ["train-s1-g0-m2-a0", "train-s1-g0-m3-a0"]


async def test_a_straggler_is_stopped_and_what_it_had_is_kept(codec: Codec) -> None:
    schedule = Schedule(groups_per_step=2, members=4, steps=1)
    allowance = HalfASecond()
    groups = await play(codec, Hangs(codec, SLOW), schedule, allowance)
    first, second = groups
    assert [e.member for e in first.episodes] == [0, 1]
    assert sorted(e.id for e in first.stopped) == SLOW
    for episode in first.stopped:
        assert episode.dropped == "straggler"
        assert (episode.stop, len(episode.turns)) == (EpisodeStop.INVALID, 1)
        assert episode.outcome == Invalid(reason="it was stopped (straggler)", blame="environment")
        assert episode.turns[0].num_sampled == episode.segments[0].num_trained > 0
    assert (len(second.episodes), second.stopped, second.dropped) == (4, [], [])


async def test_what_runs_of_a_group_that_is_given_up_is_kept_too(codec: Codec) -> None:
    schedule = Schedule(groups_per_step=2, members=4, steps=1, late="drop")
    groups = await play(codec, Hangs(codec, SLOW), schedule, Allowance(surplus=1))
    assert [group.job.task.id for group in groups] == ["1", "2", "0"]
    late = groups[2]
    lost = [*late.dropped, *late.stopped]
    assert (late.episodes, sorted(e.member for e in lost)) == ([], [0, 1, 2, 3])
    assert {e.dropped for e in lost} == {"late"}
    assert {e.id for e in late.stopped} >= {*SLOW}, "they have no score"


async def test_a_group_whose_straggler_was_stopped_can_be_replaced(codec: Codec) -> None:
    def another(ticket: int, group: PlayedGroup) -> GroupJob | None:
        asked.append((ticket, group.job.task.id, len(group.stopped)))
        return job(7) if group.stopped else None

    asked: list[tuple[int, str, int]] = []
    schedule = Schedule(groups_per_step=1, members=4, steps=1)
    engine = Hangs(codec, SLOW)
    groups = await play(codec, engine, schedule, HalfASecond(), another)
    assert [group.job.task.id for group in groups] == ["0", "7"]
    assert asked == [(0, "0", 2), (0, "7", 0)]


async def test_an_error_behind_a_timer_ends_the_run(codec: Codec) -> None:
    def another(ticket: int, group: PlayedGroup) -> GroupJob | None:
        raise RunError("that is no policy")

    schedule = Schedule(groups_per_step=1, members=4, steps=1)
    with pytest.raises(RunError, match="that is no policy"):
        await play(codec, Hangs(codec, SLOW), schedule, HalfASecond(), another)
