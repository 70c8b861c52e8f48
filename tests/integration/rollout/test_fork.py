"""A template that drops earlier thinking: kept verbatim, or a new segment for each rewrite."""

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import Ask, ContextPolicy, ContextView, ToolEnv
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
from agentrl.tokens import Reasoning, verify_batch
from agentrl.types import AssistantTurn, Episode, EpisodeView, Source, Task
from tests.integration.templates import corpus


class Chat(ToolEnv):
    tasks = (Task(prompt="Think, then count.", answer="3"),)

    async def setup(self) -> None:
        self.said = 0

    async def reply(self, text: str) -> str | None:
        self.said += 1
        return "And the next?" if self.said < 3 else None

    async def score(self, answer: object) -> float:
        return 1.0


class Thinks:
    def act(self, view: EpisodeView) -> AssistantTurn:
        number = sum(m.role == "assistant" for m in view.messages) + 1
        return AssistantTurn(text=str(number), reasoning=f"It is surely {number}.")


def asks_once(view: ContextView) -> Ask | None:
    done = any("Sum up." in m.content for m in view.messages)
    wanted = len(view.messages) >= 5 and not done
    return Ask(request="Sum up.", then=lambda text: [*view.first]) if wanted else None


async def play(reasoning: Reasoning, policy: ContextPolicy | None = None) -> tuple[Codec, Episode]:
    codec = Codec(corpus.load("qwen3"), reasoning=reasoning)
    engine = ScriptedEngine(Thinks(), codec.renderer(()), vocab_size=codec.tokenizer.vocab_size)
    limits = EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=30.0, setup_s=5.0)
    settings = CollectSettings(
        limits=limits, temperature=1.0, concurrency=4, attempts=1, max_invalid_share=1.0
    )
    collector = Collector(engine=engine, codec=codec, settings=settings)
    task = Chat.task_at(0, split="train", seed=0)

    def make_env() -> ToolEnv:
        env = Chat()
        env.context = policy or env.context
        return env

    job = GroupJob(
        key=EpisodeKey.first(run=0, step=1, place=0),
        env="chat",
        make_env=make_env,
        task=task,
        split="train",
    )
    [episode] = (await gather_groups(collector.collect([job], group_size=1))).episodes
    assert verify_batch(make_batch([episode], temperature=1.0)) > 0
    return codec, episode


async def test_kept_verbatim_it_is_one_segment_with_all_thoughts() -> None:
    codec, episode = await play("keep")
    [segment] = episode.segments
    text = codec.tokenizer.decode(segment.ids_T.tolist())
    assert all(f"It is surely {n}." in text for n in (1, 2, 3))


async def test_forked_each_segment_begins_as_the_template_renders_it() -> None:
    codec, episode = await play("fork")
    assert len(episode.segments) == 3
    renderer = codec.renderer(())
    for number, segment in enumerate(episode.segments):
        prompt = segment.ids_T[segment.sources_T == Source.PROMPT].tolist()
        assert prompt == renderer.prompt(episode.messages[: 1 + 2 * number])
        assert "surely" not in codec.tokenizer.decode(prompt)
        assert f"surely {number + 1}" in codec.tokenizer.decode(segment.ids_T.tolist())
    assert [len(set(s.turns_T.tolist())) for s in episode.segments] == [1, 1, 1]


async def test_a_request_for_a_summary_forks_too() -> None:
    codec, episode = await play("fork", asks_once)
    texts = [codec.tokenizer.decode(segment.ids_T.tolist()) for segment in episode.segments]
    [asked] = [text for text in texts if "Sum up." in text]
    before, _, after = asked.partition("Sum up.")
    assert "surely" not in before  # as the template renders it
    assert "surely" in after


@pytest.mark.parametrize("reasoning", ["keep", "fork"])
async def test_what_is_trained_is_what_was_sampled(reasoning: Reasoning) -> None:
    _, episode = await play(reasoning)
    trained = sum(int(segment.mask_T.sum()) for segment in episode.segments)
    assert trained == sum(turn.num_sampled for turn in episode.turns)
