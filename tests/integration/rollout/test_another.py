"""A further job in the place of a group that has ended: how many there are, and in which order."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import ToolEnv
from agentrl.errors import RunError
from agentrl.rollout import (
    Codec,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    PlayedGroup,
    gather_groups,
)
from agentrl.rollout.driver import Another
from agentrl.rollout.selection import drop
from agentrl.types import (
    Completion,
    EpisodeSession,
    Sampling,
    Score,
    Task,
)
from tests.integration.rollout.played import SERVICES, say_yes


class Slow(ScriptedEngine):
    """Answers after a time that depends on nothing but `noise`, and keeps who asked, in order."""

    def __init__(self, codec: Codec, noise: int) -> None:
        super().__init__(say_yes, codec.renderer(()), vocab_size=768)
        self.waits = random.Random(noise)
        self.asked: list[str] = []

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        self.asked.append(session.key)
        await asyncio.sleep(self.waits.random() / 100)
        return await super().generate(ids, sampling, session)


class Late(ToolEnv):
    """As many turns as the task says; takes its time to begin, another one in each run."""

    tasks = (Task(prompt="unused"),)
    waits = random.Random()
    left = 0

    async def setup(self) -> None:
        self.left = self.task.answer
        await asyncio.sleep(self.waits.random() / 100)

    def reply(self, text: str) -> str | None:
        self.left -= 1
        return "More." if self.left else None

    def score(self, answer: str) -> Score:
        return Score(value=1.0)


def job(place: int) -> GroupJob:
    return GroupJob(
        key=EpisodeKey.first(run=0, step=1, place=place),
        env="env",
        make_env=lambda: Late(services=SERVICES),
        task=Task(prompt="How long?", answer=1 + place * 5 % 4, id=str(place)),
        split="train",
    )


def collect(
    engine: Slow, codec: Codec, another: Another, *, fixed_order: bool = False
) -> AsyncGenerator[PlayedGroup]:
    settings = CollectSettings(
        limits=EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=60.0, setup_s=5.0),
        temperature=1.0,
        concurrency=3,
        attempts=2,
        max_invalid_share=1.0,
        fixed_order=fixed_order,
    )
    collector = Collector(engine=engine, codec=codec, settings=settings)
    return collector.collect([job(place) for place in range(4)], group_size=2, another=another)


class EveryThird:
    """Keeps the groups whose place can be divided by three, until four are kept, of 12 at most."""

    drawn = 4

    def __call__(self, ticket: int, group: PlayedGroup) -> GroupJob | None:
        if place_of(group) % 3 == 0:
            return None
        drop(group, group.episodes, "flat")
        if self.drawn == 12:
            return None
        self.drawn += 1
        return job(self.drawn - 1)


def place_of(group: PlayedGroup) -> int:
    return group.job.key.group % 10**9


async def test_as_many_are_played_as_are_asked_for(codec: Codec) -> None:
    done: list[int] = []
    collected = await gather_groups(collect(Slow(codec, 1), codec, EveryThird()), done.append)
    assert [e.id for e in collected.episodes] == [
        f"train-s1-g{place}-m{member}-a0" for place in (0, 3, 6, 9) for member in (0, 1)
    ]
    assert [e.group % 10**9 for e in collected.dropped][::2] == [1, 2, 4, 5, 7, 8]
    assert {e.dropped for e in collected.dropped} == {"flat"}
    assert collected.num_groups == 10
    assert done == [*range(1, 11)]


async def test_in_a_fixed_order_the_engine_gets_the_same_rounds(codec: Codec) -> None:
    engines = [Slow(codec, noise) for noise in range(3)]
    for noise, engine in enumerate(engines):
        Late.waits.seed(noise)
        collected = await gather_groups(collect(engine, codec, EveryThird(), fixed_order=True))
        assert len(collected.episodes) == 8
    assert engines[0].asked == engines[1].asked == engines[2].asked


async def test_one_that_is_left_out_gives_its_place_too(codec: Codec) -> None:
    long = replace(job(4), task=Task(prompt="x " * 600))
    given = iter([long, job(5)])

    def another(ticket: int, group: PlayedGroup) -> GroupJob | None:
        return next(given) if place_of(group) == 0 or group.left_out else None

    collected = await gather_groups(collect(Slow(codec, 1), codec, another))
    assert [prompt.task for prompt in collected.too_long] == [long.task.id]
    assert collected.num_groups == 6
    assert [e.group % 10**9 for e in collected.episodes][::2] == [0, 1, 2, 3, 5]


async def test_an_error_of_whoever_is_asked_ends_the_collection(codec: Codec) -> None:
    def another(ticket: int, group: PlayedGroup) -> GroupJob | None:
        raise RunError("no task is left")

    before = asyncio.all_tasks()
    with pytest.raises(RunError, match="no task is left"):
        await gather_groups(collect(Slow(codec, 1), codec, another))
    assert asyncio.all_tasks() == before


async def test_a_number_that_there_is_already_is_refused(codec: Codec) -> None:
    def another(ticket: int, group: PlayedGroup) -> GroupJob:
        return job(0)

    async with aclosing(collect(Slow(codec, 1), codec, another)) as groups:
        with pytest.raises(ValueError, match="two jobs have the key of train-s1-g0-m0-a0"):
            async for _ in groups:
                pass
