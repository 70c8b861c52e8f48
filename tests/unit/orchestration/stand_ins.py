"""Parts of a run that keep a log of what is done with them: a real collector, and no weights."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from agentrl.engine.protocol import MEMORY_TAGS, MemoryTag
from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices
from agentrl.envs.calculator import Calculator
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, JobMaker, bind_envs
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.parts import Parts, make_collector
from agentrl.rollout import Codec, Collected
from agentrl.tokens import Tokenizer
from agentrl.trainer.shares import OUTPUTS
from agentrl.trainer.updates import GapAlarm, StepStats, Suspect
from agentrl.types import Batch
from agentrl.weights.source import WeightSource

STATS = StepStats(
    step=1,
    loss=0.5,
    grad_norm=1.0,
    lr=1e-3,
    entropy=0.1,
    episode_probability=0.5,
    num_trained=4,
    num_verified=4,
    skipped=None,
    seconds=0.0,
    ratio_mean=1.0,
    ratio_deviation_mean=0.0,
    ratio_deviation_max=0.0,
    loss_statistics={"clip_fraction": 0.25},
    kl=0.0,
    gap_mean=0.0,
    gap_max=0.0,
)


def alarm(*, final: bool) -> StepStats:
    """An update that was refused for its gap."""
    suspect = Suspect(episode=0, segment=0, token=3, policy=-1.0, behavior=-4.0)
    raised = GapAlarm(reason="the gap is 3", worst=(suspect,), number=3, final=final)
    return replace(STATS, skipped="the gap is 3", alarm=raised)


class Log(list[str]):
    """What was done, in order."""


class LoggedEngine(ScriptedEngine):
    """Lets the expert of `calculator` play."""

    def __init__(self, codec: Codec, log: Log) -> None:
        renderer = codec.renderer(Calculator().tool_schemas)
        super().__init__(Calculator.expert(), renderer, vocab_size=768)
        self.log = log

    async def pause(self) -> None:
        self.log.append("pause")
        await super().pause()

    async def resume(self) -> None:
        self.log.append("resume")
        await super().resume()

    async def aclose(self) -> None:
        self.log.append("engine closed")
        await super().aclose()

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        self.log.append(f"publish {version}")
        await super().update_weights(weights, version)

    async def release_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        self.log.append(f"engine gives up {' '.join(tags)}")
        await super().release_memory(tags)

    async def resume_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        self.log.append(f"engine takes {' '.join(tags)}")
        await super().resume_memory(tags)


@dataclass
class LoggedTrainer:
    """Answers each update with the next of `answers`, the last of them for ever."""

    log: Log
    answers: list[StepStats | Exception] = field(default_factory=lambda: [STATS])
    batches: list[Batch] = field(default_factory=list[Batch])
    has_changed: bool = False
    step: int = 0

    def update(self, batch: Batch) -> StepStats:
        self.log.append("update")
        self.batches.append(batch)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        self.has_changed = True
        return answer

    def give_up(self) -> bool:
        return not self.has_changed

    def with_outputs(self, batch: Batch, names: Collection[str]) -> Batch:
        self.log += names
        arrays = {OUTPUTS[name][0]: np.zeros(batch.num_tokens, np.float32) for name in names}
        return replace(batch, **arrays)  # type: ignore[arg-type]  # each by its name

    def weights(self) -> WeightSource:
        return cast("WeightSource", None)

    def release_memory(self) -> None:
        self.log.append("trainer gives up")

    def reclaim_memory(self) -> None:
        self.log.append("trainer takes")

    def close(self) -> None:
        self.log.append("trainer closed")


@dataclass
class LoggedStore:
    """Keeps in memory what a run leaves; a checkpoint is a step and a version."""

    log: Log
    directory: Any = None
    metrics: dict[int, Mapping[str, float]] = field(default_factory=dict[int, Mapping[str, float]])
    events: list[tuple[str, dict[str, object]]] = field(
        default_factory=list[tuple[str, dict[str, object]]]
    )
    collected: list[Collected] = field(default_factory=list[Collected])
    saved: tuple[int, int] = (0, 0)
    sampler: str = ""
    recipe: str = ""
    groups: str = ""

    def episodes_file(self, step: int) -> Path:
        return Path(f"step-{step}.parquet")

    def write_step(self, step: int, metrics: Mapping[str, float], collected: Collected) -> None:
        self.log.append(f"written {step}")
        self.metrics[step] = metrics
        self.collected.append(collected)

    def write_eval(self, step: int, collected: Collected) -> None:
        self.log.append(f"evaluated {step}")
        self.collected.append(collected)

    def event(self, kind: str, **fields: object) -> None:
        self.events.append((kind, fields))

    def save(self, trainer: object, step: int, version: int, metrics: object, *states: str) -> None:
        self.log.append(f"saved {step}")
        self.saved, (self.sampler, self.recipe, self.groups) = (step, version), states

    def restore(self, trainer: object) -> tuple[int, int, str, str, str]:
        return (*self.saved, self.sampler, self.recipe, self.groups)

    def close(self) -> None:
        self.log.append("store closed")


def configuration(*flags: str) -> RunConfig:
    """Two tasks and two episodes of each in a step."""
    few = ["--tasks-per-step", "2", "--group-size", "2", "--steps", "3", "--eval.tasks", "2"]
    return load_run_config(flags=["--env", "calculator", "--model", "tiny", *few, *flags]).config


@cache
def load_codec_once(folder: Path) -> Codec:
    return Codec(Tokenizer.load(folder))


def make_parts(folder: Path, log: Log, trainer: LoggedTrainer, config: RunConfig) -> Parts:
    """The parts of a run around an engine and a trainer that keep a log."""
    codec, services = load_codec_once(folder), EnvServices()
    envs = bind_envs(config, NO_OBJECTS)
    engine = LoggedEngine(codec, log)
    return Parts(
        config=config,
        envs=envs,
        codec=codec,
        services=services,
        engine=engine,
        learner=cast("Any", trainer),
        jobs=JobMaker(envs, services=services, tokenizer=codec.tokenizer, seed=config.seed),
        collector=make_collector(engine, codec, config, config.rollout.temperature),
        eval_collector=make_collector(engine, codec, config, config.eval.temperature),
    )
