"""Many episodes at once, with engines and environments that fail in every way."""

import asyncio
import gc
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import ToolEnv
from agentrl.envs.calculator import Calculator
from agentrl.errors import BreakerTripped, EngineError, RecordMismatch
from agentrl.rollout import (
    Codec,
    Collector,
    EpisodeLimits,
    gather_groups,
    make_batch,
)
from agentrl.rollout.episode import EpisodeRunner
from agentrl.rollout.episode_record import EpisodeRecord
from agentrl.schedule import Concurrency
from agentrl.testing import flaky_engine
from agentrl.tokens import seal, verify_batch, verify_segment
from agentrl.trainer.algorithms.advantages.remax import remax
from agentrl.types import (
    Completion,
    Episode,
    EpisodeSession,
    EpisodeStop,
    Invalid,
    Sampling,
    Score,
    StopReason,
    Task,
)
from tests.integration.rollout.played import engine, jobs, play, settings


async def test_an_expert_solves_every_task_and_every_token_verifies(codec: Codec) -> None:
    episodes = await play(codec, jobs(8))
    assert [e.id for e in episodes] == [
        f"train-s1-g{g}-m{m}-a0" for g in range(8) for m in range(2)
    ]
    for episode in episodes:
        assert episode.outcome == Score(value=1.0)
        assert episode.reward == 1.0
        assert episode.stop is EpisodeStop.ANSWERED
        assert [turn.num_calls for turn in episode.turns] == [1, 0]
        verify_segment(episode.segments[0], episode.id)
    batch = make_batch(episodes, temperature=1.0)
    assert verify_batch(batch) == batch.num_trained > 0
    assert len({e.seed for e in episodes}) == 16


@pytest.mark.parametrize("fixed_order", [False, True])
async def test_a_greedy_member_is_compared_with_and_never_trained(
    codec: Codec, *, fixed_order: bool
) -> None:
    temperatures: list[float] = []

    class Watched(ScriptedEngine):
        async def generate(
            self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
        ) -> Completion:
            temperatures.append(sampling.temperature)
            return await super().generate(ids, sampling, session)

    watched = Watched(
        Calculator.expert(), codec.renderer(Calculator().tool_schemas), vocab_size=768
    )
    collector = Collector(engine=watched, codec=codec, settings=settings(fixed_order=fixed_order))
    collected = await gather_groups(collector.collect(jobs(3), group_size=2, greedy=True))
    assert [(e.group, e.member) for e in collected.greedy] == [
        (e.group, 2) for e in collected.episodes[::2]
    ]
    assert {e.member for e in collected.episodes} == {0, 1}
    assert sorted(temperatures) == [0.0] * 6 + [1.0] * 12
    batch = make_batch(collected.episodes, temperature=1.0, greedy=collected.greedy[1:])
    assert batch.greedy_E is not None
    assert batch.greedy_E.tolist()[2:] == [1.0] * 4
    assert np.isnan(batch.greedy_E[:2]).all()  # as if it could not be scored
    unscored = make_batch(collected.episodes, temperature=1.0, greedy=[])
    assert unscored.greedy_E is not None
    assert not remax(unscored).any()


async def test_no_jobs_are_no_groups(codec: Codec) -> None:
    assert await play(codec, []) == []


async def test_waiting_for_what_is_scarce_is_no_time_of_the_episode(codec: Codec) -> None:
    """Sixteen episodes share one place; each waits longer than its reset may take."""
    place, inside = asyncio.Lock(), 0

    class Scarce(Calculator):
        @asynccontextmanager
        async def admission(self, task: Task) -> AsyncGenerator[object]:
            nonlocal inside
            async with place:
                inside += 1
                assert inside == 1
                yield None
                assert not self.is_open
                inside -= 1

        async def setup(self) -> None:
            await asyncio.sleep(0.05)

    # Together they wait for longer than one may take.
    limits = EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=0.6, setup_s=0.6)
    episodes = await play(codec, jobs(8, Scarce), limits=limits)
    assert [episode.outcome for episode in episodes] == [Score(value=1.0)] * 16


async def test_sampled_ids_are_recorded_as_they_are(codec: Codec) -> None:
    """Non-canonical splits of words survive: nothing is tokenized again."""
    canonical = codec.tokenizer.encode("number", specials=False)
    split = [i for letter in "number" for i in codec.tokenizer.encode(letter, specials=False)]
    assert split != canonical
    stop = next(iter(codec.renderer(Calculator().tool_schemas).stop_ids))
    seen: list[list[int]] = []

    class Splitting(ScriptedEngine):
        async def generate(
            self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
        ) -> Completion:
            seen.append(list(ids))
            out = [*split, stop]
            return seal(out, [-0.5] * len(out), [3] * len(out), StopReason.STOP)

    class Talk(Calculator):
        max_turns = 5

        def reply(self, text: str) -> str:
            return f"you said {text}"

    collector = Collector(
        engine=Splitting(Calculator.expert(), codec.renderer(())), codec=codec, settings=settings()
    )
    [episode] = (await gather_groups(collector.collect(jobs(1, Talk), group_size=1))).episodes
    segment = episode.segments[0]
    assert segment.ids_T[segment.mask_T].tolist() == [*split, stop] * 5
    assert set(segment.versions_T[segment.mask_T].tolist()) == {3}
    for before, after in pairwise(seen):
        assert after[: len(before)] == before


@pytest.mark.parametrize(
    ("concurrency", "tokens", "expected"), [(3, None, 3), ("auto", 1, 1), ("auto", None, 8)]
)
async def test_no_more_episodes_than_allowed_play_at_once_and_each_session_ends(
    codec: Codec, concurrency: Concurrency, tokens: int | None, expected: int
) -> None:
    class Slow(ScriptedEngine):
        capacity_tokens = tokens

        async def generate(
            self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
        ) -> Completion:
            playing.add(session.key)
            most.append(len(playing))
            await asyncio.sleep(0.001)
            return await super().generate(ids, sampling, session)

        async def end_session(self, session: EpisodeSession) -> None:
            playing.remove(session.key)

    playing: set[str] = set()
    most: list[int] = []
    slow = Slow(Calculator.expert(), codec.renderer(Calculator().tool_schemas), vocab_size=768)
    collector = Collector(engine=slow, codec=codec, settings=settings(concurrency=concurrency))
    await gather_groups(collector.collect(jobs(4), group_size=2))
    assert max(most) == expected
    assert not playing


def none(task: Task, answer: object) -> None:
    return None


def nan(task: Task, answer: object) -> float:
    return float("nan")


def raises(task: Task, answer: object) -> float:
    raise KeyError("reference")


@pytest.mark.parametrize(
    ("verifier", "reason"), [(none, "None"), (nan, "nan"), (raises, "KeyError")]
)
async def test_a_verifier_that_fails_is_invalid_and_never_zero(
    codec: Codec, verifier: Callable[[Task, object], float], reason: str
) -> None:
    collector = Collector(engine=engine(codec), codec=codec, settings=settings(attempts=1))
    played = jobs(1, verifier=verifier)
    collected = await gather_groups(collector.collect(played, group_size=2))
    assert collected.episodes == []
    for episode in collected.invalid:
        assert isinstance(episode.outcome, Invalid)
        assert episode.outcome.blame == "verifier"
        assert reason in episode.outcome.reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: seal([1, 2, 3], [-0.1, -0.1], [0, 0, 0], StopReason.STOP), "2 logprobs"),
        (lambda: seal([1, 2], [], [0, 0], StopReason.STOP), "0 logprobs"),
        (lambda: seal([99999], [-0.1], [0], StopReason.STOP), "99999"),
        (lambda: seal([1], [float("nan")], [0], StopReason.STOP), "nan"),
        (lambda: seal([], [], [], StopReason.STOP), "no tokens"),
    ],
)
async def test_a_wrong_answer_of_the_engine_is_invalid(
    codec: Codec, answer: Callable[[], Completion], reason: str
) -> None:
    wrong = flaky_engine(engine(codec), lambda _: answer())
    collector = Collector(engine=wrong, codec=codec, settings=settings(attempts=1))
    collected = await gather_groups(collector.collect(jobs(1), group_size=1))
    [episode] = collected.invalid
    assert isinstance(episode.outcome, Invalid)
    assert episode.outcome.blame == "engine"
    assert reason in episode.outcome.reason


async def test_an_aborted_completion_is_the_engines_fault(codec: Codec) -> None:
    aborted = seal([1, 2], [-0.1, -0.1], [0, 0], StopReason.ABORT)
    aborts = flaky_engine(engine(codec), lambda _: aborted)
    collector = Collector(engine=aborts, codec=codec, settings=settings(attempts=1))
    [episode] = (await gather_groups(collector.collect(jobs(1), group_size=1))).invalid
    assert isinstance(episode.outcome, Invalid)
    assert episode.outcome.blame == "engine"
    assert episode.outcome.reason == "the engine aborted the completion of turn 0"


async def test_a_completion_changed_after_its_seal_stops_the_run(codec: Codec) -> None:
    class Flips(ScriptedEngine):
        async def generate(
            self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
        ) -> Completion:
            completion = await super().generate(ids, sampling, session)
            return replace(completion, logprobs_T=completion.logprobs_T - np.float32(1e-6))

    flips = Flips(Calculator.expert(), codec.renderer(Calculator().tool_schemas))
    collector = Collector(engine=flips, codec=codec, settings=settings())
    with pytest.raises(RecordMismatch, match=r"episode train-s1-g0-m0-a0: token 0 of .* turn 0 "):
        await gather_groups(collector.collect(jobs(1), group_size=1))


async def test_budgets_cut_and_the_episode_is_still_scored(codec: Codec) -> None:
    def cut(
        max_new_tokens: int = 64, max_episode_tokens: int = 512, wall_s: float = 5.0
    ) -> EpisodeLimits:
        return EpisodeLimits(
            max_new_tokens=max_new_tokens,
            max_context_tokens=512,
            max_episode_tokens=max_episode_tokens,
            wall_s=wall_s,
            setup_s=5.0,
        )

    class Slow(Calculator):
        async def reply(self, text: str) -> None:
            await asyncio.sleep(60)

    async def stop(limits: EpisodeLimits, env: type[ToolEnv] = Calculator) -> Episode:
        [episode, _] = await play(codec, jobs(1, env), limits=limits)
        assert episode.valid
        return episode

    turn = await stop(cut(max_new_tokens=5))
    assert turn.stop is EpisodeStop.TURN_TOKENS
    assert turn.turns[0].call_errors == ("unclosed",)
    assert [m.role for m in turn.messages] == ["system", "user", "assistant"]
    assert turn.segments[0].num_trained == 5
    prompt = int((turn.segments[0].sources_T == 0).sum())
    whole = await stop(cut(max_episode_tokens=prompt + 25))
    assert whole.stop in (EpisodeStop.TURN_TOKENS, EpisodeStop.EPISODE_TOKENS)
    assert whole.segments[0].num_tokens <= prompt + 25
    assert (await stop(cut(wall_s=0.3), Slow)).stop is EpisodeStop.WALL_TIME


async def test_what_the_wall_clock_cuts_off_keeps_its_rewards(codec: Codec) -> None:
    class Slow(Calculator):
        async def state_key(self) -> str:
            self.reward(0.5, "early")
            await asyncio.sleep(60)
            return "never"

    limits = EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=0.8, setup_s=5.0)
    [episode, _] = await play(codec, jobs(1, Slow), limits=limits)
    assert episode.stop is EpisodeStop.WALL_TIME
    assert episode.reward == 0.5
    assert [turn.num_calls for turn in episode.turns] == [1]
    assert episode.turns[0].parts == {"early": 0.5}
    assert episode.turns[0].environment_s > 0.1


async def test_an_environment_that_cannot_close_makes_its_episode_invalid(codec: Codec) -> None:
    class Sticks(Calculator):
        async def aclose(self) -> None:
            await super().aclose()
            raise ValueError("stuck")

    collector = Collector(engine=engine(codec), codec=codec, settings=settings(attempts=1))
    collected = await gather_groups(collector.collect(jobs(1, Sticks), group_size=1))
    [episode] = collected.invalid
    assert isinstance(episode.outcome, Invalid)
    assert episode.outcome.blame == "environment"
    assert re.search(r"ValueError: stuck \(.*, line \d+, in aclose\)", episode.outcome.reason)


@pytest.mark.parametrize("fixed_order", [False, True])
async def test_a_stopped_collection_leaves_no_work_behind(codec: Codec, fixed_order: bool) -> None:
    def strike(session: EpisodeSession) -> EngineError | float:
        first = any(place in session.key for place in ("-g0-", "-g1-", "-g2-"))
        return EngineError("the server answered 500") if first else 60.0

    failing = flaky_engine(engine(codec), strike)
    chosen = settings(max_invalid_share=0.1, fixed_order=fixed_order, attempts=9)
    collector = Collector(engine=failing, codec=codec, settings=chosen)
    before = asyncio.all_tasks()
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    played = jobs(3 if fixed_order else 5)
    with pytest.raises(BreakerTripped):
        await gather_groups(collector.collect(played, group_size=2))
    assert asyncio.all_tasks() == before
    gc.collect()
    assert told == []  # what others raised after the first one


async def test_an_episode_without_a_score_never_enters_a_batch(codec: Codec) -> None:
    collector = Collector(engine=engine(codec), codec=codec, settings=settings(attempts=1))
    played = jobs(1, verifier=nan)
    collected = await gather_groups(collector.collect(played, group_size=1))
    with pytest.raises(ValueError, match="train-s1-g0-m0-a0 has no score"):
        make_batch(collected.invalid, temperature=1.0)


async def test_cancelling_ends_everything(codec: Codec) -> None:
    begun: list[str] = []
    closed: list[str] = []

    class Waits(Calculator):
        async def setup(self) -> None:
            self.resources.callback(lambda: closed.append(self.task.id))
            begun.append(self.task.id)

        async def reply(self, text: str) -> None:
            await asyncio.sleep(60)

    collector = Collector(engine=engine(codec), codec=codec, settings=settings())
    work = asyncio.create_task(gather_groups(collector.collect(jobs(3, Waits), group_size=2)))
    async with asyncio.timeout(30):
        while len(begun) < 6:  # noqa: ASYNC110  # another task sets them up
            await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert len(closed) == 6


async def test_fixed_order_gives_the_same_batch_twice(codec: Codec) -> None:
    batches = [
        make_batch(await play(codec, jobs(6), fixed_order=True), temperature=1.0) for _ in range(2)
    ]
    assert np.array_equal(batches[0].ids_N, batches[1].ids_N)
    assert batches[0].digests_R == batches[1].digests_R


async def test_the_wall_clock_stands_still_while_the_engine_is_paused(codec: Codec) -> None:
    limits = EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=1.5, setup_s=30.0)
    scripted = engine(codec)
    collector = Collector(engine=scripted, codec=codec, settings=settings(limits=limits))
    await scripted.pause()
    asyncio.get_running_loop().call_later(2.0, lambda: asyncio.ensure_future(scripted.resume()))
    [episode] = (await gather_groups(collector.collect(jobs(1), group_size=1))).episodes
    assert episode.stop is EpisodeStop.ANSWERED
    assert scripted.paused_s >= 2.0


async def test_an_episode_says_that_it_waits_for_its_verifier_while_that_scores(
    codec: Codec,
) -> None:
    said: list[tuple[str, str]] = []

    async def score(task: Task, answer: object) -> float:
        assert said == [(record.id, "verifier")]
        return 1.0

    (job,) = jobs(1, verifier=score)
    record = EpisodeRecord(job, job.key, codec.tokenizer.vocab_size)
    runner = EpisodeRunner(
        codec=codec,
        generate=engine(codec).generate,
        limits=settings().limits,
        temperature=1.0,
        say_owner=lambda episode, owner: said.append((episode, owner)),
    )
    assert (await runner.run(record)).outcome == Score(value=1.0)
    assert said
