"""How many files a reader goes through who follows one turn, from an answer to the next request."""

import sys
from collections.abc import Sequence
from pathlib import Path

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices
from agentrl.envs.calculator import Calculator
from agentrl.rollout import (
    Codec,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    gather_groups,
)
from agentrl.tokens import Tokenizer
from agentrl.types import Completion, EpisodeSession, Sampling
from tests.integration.test_files_of_a_step import Tracer

MOST_FILES = 25


class Traced(ScriptedEngine):
    """Lets the expert play; what is done between two requests is traced, from the third one on."""

    def __init__(self, codec: Codec, tracer: Tracer) -> None:
        renderer = codec.renderer(Calculator().tool_schemas)
        super().__init__(Calculator.expert(), renderer, vocab_size=768)
        self.tracer, self.requests = tracer, 0

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        self.tracer.is_on = False
        completion = await super().generate(ids, sampling, session)
        self.requests += 1
        self.tracer.is_on = self.requests == 3  # the first episode makes what is made once
        return completion


async def test_a_turn_goes_through_few_files(tiny_folder: Path) -> None:
    codec, tracer, services = Codec(Tokenizer.load(tiny_folder)), Tracer(), EnvServices()
    engine = Traced(codec, tracer)
    limits = EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=60.0, setup_s=5.0)
    settings = CollectSettings(
        limits=limits, temperature=1.0, concurrency=1, attempts=1, max_invalid_share=0.0
    )
    job = GroupJob(
        key=EpisodeKey.first(run=0, step=1, place=0),
        env="calculator",
        make_env=lambda: Calculator(tokenizer=codec.tokenizer, services=services),
        task=Calculator.task_at(0, split="train", seed=0),
        split="train",
    )
    collector = Collector(engine=engine, codec=codec, settings=settings)
    sys.setprofile(tracer)
    try:
        played = await gather_groups(collector.collect([job], group_size=2))
    finally:
        sys.setprofile(None)
        services.close()
    assert [len(episode.turns) for episode in played.episodes] == [2, 2]
    assert engine.requests == 4
    files = tracer.own_files()
    print("\n" + "\n".join(files))
    assert {"tools/runner.py", "agentrl/tokens/record.py", "envs/calculator.py"} <= {*files}
    assert len(files) <= MOST_FILES
