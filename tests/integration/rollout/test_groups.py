"""Groups one by one: when they come, what closing leaves, and what an error does."""

import asyncio
import gc
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices
from agentrl.envs.calculator import Calculator
from agentrl.errors import RecordMismatch
from agentrl.rollout import (
    Codec,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    PlayedGroup,
    gather_groups,
    make_batch,
)
from agentrl.types import Completion, EpisodeSession, Sampling, Task

SERVICES = EnvServices()


class Held(ScriptedEngine):
    """Answers no episode of the groups in `held` until `release` is set."""

    def __init__(self, codec: Codec, *held: int) -> None:
        renderer = codec.renderer(Calculator().tool_schemas)
        super().__init__(Calculator.expert(), renderer, vocab_size=768)
        self.held = [f"-g{place}-" for place in held]
        self.release = asyncio.Event()
        self.waiting = 0

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        if any(place in session.key for place in self.held):
            self.waiting += 1
            await self.release.wait()
        return await super().generate(ids, sampling, session)


class Watched(Calculator):
    """Counts the worlds that are open; closing one takes a moment before its resources close."""

    num_open = 0

    async def setup(self) -> None:
        Watched.num_open += 1
        self.resources.callback(self.count_closed)

    async def teardown(self) -> None:
        await asyncio.sleep(0.05)

    def count_closed(self) -> None:
        Watched.num_open -= 1


def jobs(num: int) -> list[GroupJob]:
    return [
        GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=place),
            env="env",
            make_env=lambda: Watched(services=SERVICES),
            task=Watched.task_at(place, split="train", seed=0),
            split="train",
        )
        for place in range(num)
    ]


def collect(
    codec: Codec, engine: ScriptedEngine, played: Sequence[GroupJob], *, fixed_order: bool = False
) -> AsyncGenerator[PlayedGroup]:
    settings = CollectSettings(
        limits=EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=60.0, setup_s=5.0),
        temperature=1.0,
        concurrency=64,
        attempts=2,
        max_invalid_share=1.0,
        fixed_order=fixed_order,
    )
    return Collector(engine=engine, codec=codec, settings=settings).collect(played, group_size=2)


def place_of(group: PlayedGroup) -> int:
    return group.job.key.group % 10**9


async def test_a_group_comes_while_another_still_plays(codec: Codec) -> None:
    engine = Held(codec, 0)
    seen: list[int] = []
    async with aclosing(collect(codec, engine, jobs(3))) as groups:
        async for group in groups:
            seen.append(place_of(group))
            assert [episode.member for episode in group.episodes] == [0, 1]
            if len(seen) == 2:
                assert not engine.release.is_set()
                engine.release.set()
    assert sorted(seen[:2]) == [1, 2]
    assert seen[2] == 0


async def test_a_slow_reader_gets_each_group_once(codec: Codec) -> None:
    seen: list[int] = []
    async for group in collect(codec, Held(codec), jobs(4)):
        if not seen:
            async with asyncio.timeout(30):
                while Watched.num_open:  # noqa: ASYNC110  # until all others have ended
                    await asyncio.sleep(0.01)
        seen.append(place_of(group))
    assert sorted(seen) == [0, 1, 2, 3]


async def test_all_together_are_in_the_order_of_their_jobs(codec: Codec) -> None:
    """Whichever ended first: the batch is the same."""

    class Late(Held):
        def __init__(self, codec: Codec, noise: int) -> None:
            super().__init__(codec)
            self.waits = random.Random(noise)

        async def generate(
            self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
        ) -> Completion:
            await asyncio.sleep(self.waits.random() / 50)
            return await super().generate(ids, sampling, session)

    done: list[int] = []
    batches = [
        make_batch(
            (await gather_groups(collect(codec, Late(codec, n), jobs(5)), done.append)).episodes,
            temperature=1.0,
        )
        for n in range(3)
    ]
    assert done == [1, 2, 3, 4, 5] * 3
    assert {batch.episode_ids for batch in batches} == {batches[0].episode_ids}
    assert {batch.digests_R for batch in batches} == {batches[0].digests_R}
    assert batches[0].group_E.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("fixed_order", [False, True])
async def test_closing_early_ends_what_runs_and_waits_for_it(
    codec: Codec, fixed_order: bool
) -> None:
    before = asyncio.all_tasks()
    engine = Held(codec, *(() if fixed_order else (1, 2)))
    async with aclosing(collect(codec, engine, jobs(3), fixed_order=fixed_order)) as groups:
        await anext(groups)
    assert Watched.num_open == 0
    assert asyncio.all_tasks() == before
    with pytest.raises(StopAsyncIteration):
        await anext(groups)


async def test_a_loop_that_is_left_ends_it_too(codec: Codec) -> None:
    before = asyncio.all_tasks()

    async def first() -> int:
        async for group in collect(codec, Held(codec, 1, 2), jobs(3)):
            return place_of(group)
        raise AssertionError

    assert await first() == 0
    gc.collect()
    async with asyncio.timeout(30):
        while asyncio.all_tasks() != before:  # noqa: ASYNC110  # the loop closes it in a task
            await asyncio.sleep(0.01)
    assert Watched.num_open == 0


async def test_whoever_is_cancelled_again_and_again_still_waits(codec: Codec) -> None:
    before = asyncio.all_tasks()
    engine = Held(codec, 0, 1, 2)
    work = asyncio.create_task(gather_groups(collect(codec, engine, jobs(3))))
    while engine.waiting < 6:  # noqa: ASYNC110  # another task counts them
        await asyncio.sleep(0)
    for _ in range(3):
        work.cancel()
        await asyncio.sleep(0.01)
        assert Watched.num_open
    with pytest.raises(asyncio.CancelledError):
        await work
    assert Watched.num_open == 0
    assert asyncio.all_tasks() == before


async def test_an_error_of_the_run_in_one_group_ends_the_others(codec: Codec) -> None:
    class Flips(Held):
        async def generate(
            self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
        ) -> Completion:
            completion = await super().generate(ids, sampling, session)
            if "-g2-" in session.key:
                completion = replace(completion, logprobs_T=completion.logprobs_T - np.float32(1))
            return completion

    before = asyncio.all_tasks()
    with pytest.raises(RecordMismatch, match="episode train-s1-g2-m0-a0"):
        await gather_groups(collect(codec, Flips(codec, 0, 1), jobs(3)))
    assert Watched.num_open == 0
    assert asyncio.all_tasks() == before


async def test_what_is_left_out_comes_first_and_counts(codec: Codec) -> None:
    played = jobs(3)
    played[1] = replace(played[1], task=Task(prompt="x " * 600), success_at=0.5)
    played[2] = replace(played[2], task=Task(prompt="\ud800"), success_at=0.5)
    done: list[int] = []
    collected = await gather_groups(collect(codec, Held(codec), played), done.append)
    assert done == [1, 2, 3]
    assert [prompt.task for prompt in collected.too_long] == [played[1].task.id]
    assert [prompt.task for prompt in collected.no_text] == [played[2].task.id]
    assert [episode.group for episode in collected.episodes] == [played[0].key.group] * 2
    assert collected.success_at == {}


async def test_no_two_groups_share_a_number(codec: Codec) -> None:
    with pytest.raises(ValueError, match="two jobs have the key of train-s1-g0-m0-a0"):
        await anext(collect(codec, Held(codec), [*jobs(1), *jobs(1)]))
