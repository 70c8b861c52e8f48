"""Episodes of several segments: through the loop, the record, the files and the loss."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from agentrl.engine import Engine
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import ContextPolicy, ContextView, Keep, Summarise, ToolEnv, Window
from agentrl.envs.context import REQUEST
from agentrl.envs.long_haul import END, NEXT, NOTHING, LongHaul
from agentrl.rollout import (
    Codec,
    Collected,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    episode_metrics,
    gather_groups,
    make_batch,
)
from agentrl.run_dir.episodes import EpisodesWriter, read_episodes
from agentrl.tokens import verify_batch
from agentrl.trainer.algorithms.normalisations import token_mean
from agentrl.trainer.logprobs import policy_scores
from agentrl.trainer.packing import pack, trained_rows
from agentrl.types import (
    AssistantTurn,
    Completion,
    Episode,
    EpisodeSession,
    EpisodeStop,
    EpisodeView,
    Message,
    Sampling,
    Source,
)

CONTEXT = 144


class Counting(ScriptedEngine):
    """Notes the length of every request and the most that its answer may add."""

    def __init__(self, codec: Codec, act: Callable[[EpisodeView], AssistantTurn]) -> None:
        super().__init__(act, codec.renderer(()), vocab_size=768)
        self.asked: list[int] = []

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        self.asked.append(len(ids) + sampling.max_new_tokens)
        return await super().generate(ids, sampling, session)


def remembering(view: EpisodeView) -> AssistantTurn:
    """The expert, but with summaries that keep everything; it guesses where it lost the key."""
    shown = " ".join(message.content for message in view.messages)
    key = re.search(r"The key is (.*?)\.", shown)
    if view.messages[-1].content.endswith(REQUEST):
        facts = ([key[0]] if key else []) + [END] * (END in shown)
        return AssistantTurn(text=" ".join(facts) or NOTHING)
    if END not in shown:
        return AssistantTurn(text=NEXT)
    return AssistantTurn(text=key[1] if key else "?")


async def play(
    codec: Codec,
    engine: Engine,
    policy: ContextPolicy,
    *,
    max_episode_tokens: int | None = None,
    group_size: int = 2,
    num_tasks: int = 4,
    context: int = CONTEXT,
) -> Collected:
    limits = EpisodeLimits(
        max_new_tokens=16,
        max_context_tokens=context,
        max_episode_tokens=max_episode_tokens,
        wall_s=60.0,
        setup_s=5.0,
    )
    settings = CollectSettings(
        limits=limits, temperature=1.0, concurrency=64, attempts=1, max_invalid_share=1.0
    )

    def make_env() -> ToolEnv:
        env = LongHaul()
        env.context = policy
        return env

    jobs = [
        GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=i),
            env="long_haul",
            make_env=make_env,
            task=LongHaul.task_at(i, split="train", seed=0),
            split="train",
        )
        for i in range(num_tasks)
    ]
    collector = Collector(engine=engine, codec=codec, settings=settings)
    return await gather_groups(collector.collect(jobs, group_size=group_size))


class Notes(Keep):
    """Never rewrites either, and notes how long each request would be."""

    seen: ClassVar[list[int]] = []

    def __call__(self, view: ContextView, /) -> None:
        self.seen.append(view.num_tokens + view.new_tokens)


async def test_a_policy_that_builds_on_keep_is_asked_before_each_request(codec: Codec) -> None:
    engine = Counting(codec, remembering)
    Notes.seen.clear()
    played = await play(codec, engine, Notes(), group_size=1, num_tasks=1, context=512)
    [episode] = played.episodes
    assert len(Notes.seen) == len(episode.turns) - 1 > 1
    assert Notes.seen == [asked - 16 for asked in engine.asked[1:]]


def sampled(episode: Episode) -> int:
    return sum(int((s.sources_T == Source.MODEL).sum()) for s in episode.segments)


async def test_summaries_carry_an_episode_over_many_segments(codec: Codec) -> None:
    engine = Counting(codec, remembering)
    collected = await play(codec, engine, Summarise(96))
    assert repr(collected) == "Collected(8 episodes, 0 invalid)"  # printing arrays takes seconds
    assert max(engine.asked) <= CONTEXT
    for episode in collected.episodes:
        assert episode.reward == 1.0
        assert len(episode.segments) > 3
        # every completion is a turn, numbered over the segments
        assert sampled(episode) == sum(turn.num_sampled for turn in episode.turns)
        turns = np.concatenate([s.turns_T for s in episode.segments])
        assert (np.diff(turns) >= 0).all()
        assert sorted(set(turns.tolist())) == list(range(len(episode.turns)))
        assert len({s.digest for s in episode.segments}) == len(episode.segments)
        assert all(s.num_tokens <= CONTEXT for s in episode.segments)
    metrics = episode_metrics(collected)
    assert metrics["sampled_tokens"] == metrics["trained_tokens"]
    assert metrics["segments"] > 3
    # a group shares the threshold, and with it here the lengths of its segments
    for a, b in zip(collected.episodes[::2], collected.episodes[1::2], strict=True):
        assert [s.num_tokens for s in a.segments] == [s.num_tokens for s in b.segments]


async def test_the_expert_of_long_haul_reads_again_what_its_summaries_lost(codec: Codec) -> None:
    """So its demonstrations succeed although it forgets, and none of them guesses."""
    expert = LongHaul.expert()
    collected = await play(codec, Counting(codec, expert.act), Summarise(96), num_tasks=30)
    assert {e.reward for e in collected.episodes} == {1.0}
    read = [len(e.turns) - len(e.segments) + 1 for e in collected.episodes]
    once = LongHaul.Config().pages + 1
    assert min(read) == once
    assert sum(n > once for n in read) > 20
    # what it takes to read everything once is several times the limit
    kept = await play(codec, Counting(codec, remembering), Keep(), context=4096)
    assert min(e.segments[0].num_tokens for e in kept.episodes) >= 3 * CONTEXT


async def test_masked_summaries_are_recorded_but_not_trained(codec: Codec) -> None:
    masked = await play(codec, Counting(codec, remembering), Summarise(96, trained=False))
    for episode in masked.episodes:
        summaries = [s.turns_T[-1] for s in episode.segments[:-1]]
        expected = sum(t.num_sampled for i, t in enumerate(episode.turns) if i not in summaries)
        assert sum(s.num_trained for s in episode.segments) == expected < sampled(episode)
    batch = make_batch(masked.episodes, temperature=1.0)
    assert verify_batch(batch) == batch.num_trained


async def test_keep_and_window_lose_what_does_not_fit(codec: Codec) -> None:
    kept = await play(codec, Counting(codec, remembering), Keep())
    full = {EpisodeStop.CONTEXT_TOKENS, EpisodeStop.TURN_TOKENS}  # or one token was left
    assert {e.stop for e in kept.episodes} <= full
    assert {len(e.segments) for e in kept.episodes} == {1}
    assert {e.reward for e in kept.episodes} == {0.0}
    engine = Counting(codec, remembering)
    window = await play(codec, engine, Window(120))
    assert {e.stop for e in window.episodes} == {EpisodeStop.ANSWERED}
    assert max(engine.asked) <= CONTEXT
    assert min(len(e.segments) for e in window.episodes) > 3


async def test_the_budget_of_an_episode_counts_all_segments(codec: Codec) -> None:
    engine = Counting(codec, remembering)
    cut = await play(codec, engine, Summarise(96), max_episode_tokens=300)
    for episode in cut.episodes:
        assert episode.stop in (EpisodeStop.EPISODE_TOKENS, EpisodeStop.TURN_TOKENS)
        assert sum(s.num_tokens for s in episode.segments) <= 300
        assert len(episode.segments) > 1


async def test_a_prompt_that_fills_the_context_ends_the_episode(codec: Codec) -> None:
    def grow(view: ContextView) -> Sequence[Message]:
        return (*view.first, Message(role="user", content="more " * 200))

    grown = await play(codec, Counting(codec, remembering), grow)
    assert {e.stop for e in grown.episodes} == {EpisodeStop.CONTEXT_TOKENS}
    assert all(e.valid for e in grown.episodes)


async def test_files_give_the_segments_back(codec: Codec, tmp_path: Path) -> None:
    collected = await play(codec, Counting(codec, remembering), Summarise(96))
    writer = EpisodesWriter(tmp_path, "run")
    [first, *_] = read_episodes(writer.write(1, collected.episodes))
    assert [s.digest for s in first.segments] == [s.digest for s in collected.episodes[0].segments]
    read = make_batch(read_episodes(writer.path(1)), temperature=1.0)
    assert verify_batch(read) == read.num_trained


async def test_an_episode_weighs_the_same_in_one_segment_and_in_many(codec: Codec) -> None:
    """Tokens and return alike, only the number of segments differs: so does nothing in the loss."""
    [many, *_] = (await play(codec, Counting(codec, remembering), Summarise(96))).episodes
    batch = make_batch([many, replace(many, id="other", group=1)], temperature=1.0)
    episode_N = np.repeat(batch.episode_R, np.diff(batch.offsets_R1))
    assert batch.num_rows > 6
    assert np.bincount(episode_N, weights=token_mean(batch)) == pytest.approx([0.5, 0.5])
    assert batch.num_trained == 2 * sum(turn.num_sampled for turn in many.turns)
    assert batch.rewards_E.tolist() == [1.0, 1.0]


async def test_the_local_engine_goes_on_over_segments(codec: Codec, tiny_folder: Path) -> None:
    """A random model: every fourth id ends its turns, and a function rewrites after each."""

    class Stops(LocalEngine):
        async def generate(
            self,
            ids: Sequence[int],
            sampling: Sampling,
            session: EpisodeSession,
            *,
            cache_key: str | None = None,
        ) -> Completion:
            often = replace(sampling, stop_ids=frozenset(range(0, 768, 4)))
            return await super().generate(ids, often, session, cache_key=cache_key)

    engine = Stops.load(tiny_folder)

    class Talks(LongHaul):
        system = "Use the calculator, then reply with the number only."

        async def reply(self, text: str) -> str | None:
            self.num_read += 1
            return "Go on." if self.num_read < 4 else None

    def rewrite(view: ContextView) -> Sequence[Message]:
        return (*view.first[:-1], replace(view.first[-1], content=f"Again {view.num_tokens}."))

    try:
        limits = EpisodeLimits(
            max_new_tokens=64, max_context_tokens=CONTEXT, wall_s=60.0, setup_s=5.0
        )
        settings = CollectSettings(
            limits=limits,
            temperature=1.0,
            concurrency=64,
            attempts=1,
            max_invalid_share=1.0,
            fixed_order=True,
        )
        collector = Collector(engine=engine, codec=codec, settings=settings)

        def make_env() -> ToolEnv:
            env = Talks()
            env.context = rewrite
            return env

        task = LongHaul.task_at(0, split="train", seed=0)
        job = GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=0),
            env="e",
            make_env=make_env,
            task=task,
            split="train",
        )
        first = await gather_groups(collector.collect([job], group_size=8))
        again = await gather_groups(collector.collect([job], group_size=8))
    finally:
        await engine.aclose()
    assert [[s.digest for s in e.segments] for e in first.episodes] == [
        [s.digest for s in e.segments] for e in again.episodes
    ]
    assert max(len(e.segments) for e in first.episodes) == 4
    # the engine went on from the longest common prefix, and from the right keys and values
    assert all(turn.cached_tokens > 10 for e in first.episodes for turn in e.turns[1:])
    batch = make_batch(first.episodes, temperature=1.0)
    packed = pack(batch, trained_rows(batch).tolist())
    with torch.no_grad():
        scores_2K = policy_scores(load_model(tiny_folder, "float32"), packed, 1.0)
    gap_K = scores_2K[0].numpy() - batch.logprobs_N[packed.source_K]
    assert np.abs(gap_K).max() < 1e-4
