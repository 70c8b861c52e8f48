"""Jobs of the calculator, and the collector that plays them."""

from collections.abc import Callable, Sequence
from typing import Any

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices, ToolEnv
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
from agentrl.types import (
    AssistantTurn,
    Episode,
    EpisodeView,
)
from agentrl.verifiers import Verifier

SERVICES = EnvServices()
Act = Callable[[EpisodeView], AssistantTurn]


def say_yes(view: EpisodeView) -> AssistantTurn:
    """Without a call."""
    return AssistantTurn(text="yes")


def settings(**changes: Any) -> CollectSettings:
    limits = EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=5.0, setup_s=5.0)
    values: dict[str, Any] = {"limits": limits, "temperature": 1.0, "concurrency": 64}
    values |= {"attempts": 3, "max_invalid_share": 1.0}
    return CollectSettings(**values | changes)


def engine(codec: Codec, act: Act | None = None, env: ToolEnv | None = None) -> ScriptedEngine:
    renderer = codec.renderer((env or Calculator()).tool_schemas)
    return ScriptedEngine(act or Calculator.expert(), renderer, vocab_size=768)


def jobs(
    num: int, env: type[ToolEnv] = Calculator, verifier: Verifier | None = None
) -> list[GroupJob]:
    return [
        GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=i),
            env="env",
            make_env=lambda: env(verifier=verifier, services=SERVICES),
            task=env.task_at(i, split="train", seed=0),
            split="train",
        )
        for i in range(num)
    ]


async def play(codec: Codec, played: Sequence[GroupJob], **changes: object) -> list[Episode]:
    collector = Collector(engine=engine(codec), codec=codec, settings=settings(**changes))
    return (await gather_groups(collector.collect(played, group_size=2))).episodes
