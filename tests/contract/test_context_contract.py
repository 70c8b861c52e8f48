"""What holds for every context policy, whatever the environment answers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import (
    ContextPolicy,
    ContextView,
    DropToolResults,
    Keep,
    Summarise,
    ToolEnv,
    Window,
)
from agentrl.rollout import (
    Codec,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    gather_groups,
    make_batch,
)
from agentrl.tokens import Tokenizer, verify_batch
from agentrl.tools import tool
from agentrl.types import (
    AssistantTurn,
    Completion,
    EpisodeSession,
    EpisodeView,
    Message,
    Sampling,
    Source,
    Task,
    ToolCall,
)

LIMIT = 256


class Pages(ToolEnv):
    system = "Read."
    max_turns = 20
    tasks = tuple(Task(prompt=f"Task {i}", answer="done", id=f"t{i}") for i in range(6))

    @tool
    async def read(self) -> str:
        """Read on."""
        return "word " * int(self.rng.integers(1, 60))

    def score(self, answer: str) -> float:
        return 1.0


def forget(view: ContextView) -> Sequence[Message] | None:
    return view.first if view.exceeds(150) else None


def reads(view: EpisodeView) -> AssistantTurn:
    if view.messages[-1].content.endswith("lost."):
        return AssistantTurn(text="a summary", calls=(ToolCall(name="read", id="call_0"),))
    return AssistantTurn(calls=(ToolCall(name="read", id="call_0"),))


@pytest.mark.parametrize(
    "policy",
    [Keep(), DropToolResults(1), Window(), Summarise(120), Summarise(120, trained=False), forget],
    ids=["keep", "drop_tool_results", "window", "summarise", "masked", "function"],
)
async def test_no_request_is_too_long_and_every_token_is_accounted_for(
    policy: ContextPolicy, tiny_folder: Path
) -> None:
    codec = Codec(Tokenizer.load(tiny_folder))
    asked: list[int] = []

    class Engine(ScriptedEngine):
        async def generate(
            self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
        ) -> Completion:
            asked.append(len(ids) + sampling.max_new_tokens)
            return await super().generate(ids, sampling, session)

    def make_env() -> ToolEnv:
        env = Pages()
        env.context = policy
        return env

    engine = Engine(reads, codec.renderer(Pages().tool_schemas), vocab_size=768)
    limits = EpisodeLimits(max_new_tokens=32, max_context_tokens=LIMIT, wall_s=None, setup_s=5.0)
    settings = CollectSettings(
        limits=limits, temperature=1.0, concurrency=8, attempts=1, max_invalid_share=0.0
    )
    jobs = [
        GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=i),
            env="e",
            make_env=make_env,
            task=Pages.task_at(i, split="train", seed=0),
            split="train",
        )
        for i in range(6)
    ]
    collector = Collector(engine=engine, codec=codec, settings=settings)
    collected = await gather_groups(collector.collect(jobs, group_size=2))
    assert max(asked) <= LIMIT
    assert len(asked) == sum(len(episode.turns) for episode in collected.episodes)
    for episode in collected.episodes:
        sampled = sum(int((s.sources_T == Source.MODEL).sum()) for s in episode.segments)
        assert sampled == sum(turn.num_sampled for turn in episode.turns)
    segments = sum(len(episode.segments) for episode in collected.episodes)
    assert (segments > len(collected.episodes)) == (policy != Keep())
    batch = make_batch(collected.episodes, temperature=1.0)
    assert verify_batch(batch) == batch.num_trained
    calls = sum(turn.num_calls for episode in collected.episodes for turn in episode.turns)
    played = sum(m.role == "assistant" for episode in collected.episodes for m in episode.messages)
    assert calls <= played  # a call in a summary did not run
