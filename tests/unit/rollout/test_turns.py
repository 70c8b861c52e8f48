"""What each turn is asked for: its seed and its room, to the token."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices
from agentrl.envs.calculator import Calculator
from agentrl.errors import EnvironmentFault
from agentrl.rollout import (
    Codec,
    Collected,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    gather_groups,
)
from agentrl.tokens import Tokenizer
from agentrl.types import Completion, EpisodeSession, EpisodeStop, Sampling


class Asked(ScriptedEngine):
    """Keeps how long each prompt was, and what was asked for behind it."""

    def __init__(self, codec: Codec) -> None:
        renderer = codec.renderer(Calculator().tool_schemas)
        super().__init__(Calculator.expert(), renderer, vocab_size=768)
        self.turns: dict[str, list[tuple[int, Sampling]]] = {}

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        self.turns.setdefault(session.key, []).append((len(ids), sampling))
        return await super().generate(ids, sampling, session)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.codec = Codec(Tokenizer.load(folder))

    async def play(
        self, env: type[Calculator] = Calculator, *, context: int = 512, members: int = 1
    ) -> tuple[Collected, dict[str, list[tuple[int, Sampling]]]]:
        engine, services = Asked(self.codec), EnvServices()
        settings = CollectSettings(
            limits=EpisodeLimits(
                max_new_tokens=64, max_context_tokens=context, wall_s=5.0, setup_s=5.0
            ),
            temperature=1.0,
            concurrency=4,
            attempts=3,
            max_invalid_share=1.0,
        )
        job = GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=0),
            env="env",
            make_env=lambda: env(services=services),
            task=env.task_at(0, split="train", seed=0),
            split="train",
        )
        collector = Collector(engine=engine, codec=self.codec, settings=settings)
        try:
            return await gather_groups(collector.collect([job], group_size=members)), engine.turns
        finally:
            services.close()


@pytest.fixture
def bench(tiny_folder: Path) -> Bench:
    return Bench(tiny_folder)


async def test_a_context_that_is_exactly_full_has_no_room_for_a_turn(bench: Bench) -> None:
    _, turns = await bench.play()
    (first, _), (second, _) = next(iter(turns.values()))
    full, asked = await bench.play(context=second)
    assert full.episodes[0].stop is EpisodeStop.CONTEXT_TOKENS
    assert [length for length, _ in next(iter(asked.values()))] == [first]
    one_more, asked = await bench.play(context=second + 1)
    assert [sampling.max_new_tokens for _, sampling in next(iter(asked.values()))][1] == 1
    assert len(one_more.episodes[0].turns) == 2


async def test_each_turn_member_and_attempt_has_a_seed_of_its_own(bench: Bench) -> None:
    class Flaky(Calculator):
        failures = 1

        async def setup(self) -> None:
            if type(self).failures:
                type(self).failures -= 1
                raise EnvironmentFault("not yet")

    collected, turns = await bench.play(Flaky, members=3)
    assert [len(asked) for asked in turns.values()] == [2, 2, 2]
    seeds = [sampling.seed for asked in turns.values() for _, sampling in asked]
    assert len(set(seeds)) == 6
    failed, *_ = collected.invalid
    again = next(e for e in collected.episodes if e.member == failed.member)
    assert (failed.attempt, again.attempt) == (0, 1)
    assert failed.seed != again.seed
    _, repeated = await bench.play(Flaky, members=3)
    same = [s.seed for key, asked in repeated.items() if key in turns for _, s in asked]
    assert set(same) <= set(seeds)
