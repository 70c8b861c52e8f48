"""A real run and the virtual clock play the same draws, and both feel a change of the scheduler."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices, ToolEnv
from agentrl.orchestration.controller import Controller
from agentrl.orchestration.env_mix import JobMaker, Overrides, bind_envs
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.observers import Observer
from agentrl.orchestration.parts import Parts, make_collector
from agentrl.orchestration.schedules import make_admission, make_schedule
from agentrl.orchestration.stopping import Stopping
from agentrl.rollout import TaskRef
from agentrl.schedule import Schedule
from agentrl.testing.virtual_clock import Workload, lognormal, simulate
from agentrl.trainer.algorithms.recipe import make_recipe
from agentrl.trainer.updates import StepStats
from agentrl.types import AssistantTurn, Batch, Completion, EpisodeSession, Sampling, Task
from agentrl.weights.source import WeightSource
from benchmarks.timed_run import DrawnTimes, wait_for_tool
from tests.unit.orchestration.stand_ins import Log, LoggedStore, LoggedTrainer, load_codec_once

WORKLOAD = Workload(
    num_turns=lambda rng: rng.randint(1, 4),
    turn_s=lognormal(0.02, 1.0),
    train_s=0.015,
    publish_s=0.002,
)
STEPS, GROUPS, MEMBERS, SEED = 8, 2, 2, 0
FLAGS = [
    *("--env", "<waits>", "--model", "tiny", "--async.staleness", "4", "--steps", str(STEPS)),
    *("--tasks-per-step", str(GROUPS), "--group-size", str(MEMBERS)),
    *("--rollout.concurrency", str(GROUPS * MEMBERS)),
]


class Waits(ToolEnv):
    """As many turns as were drawn, with a tool behind each."""

    tasks = (Task(prompt="Say anything."),)
    max_turns = 4

    async def reply(self, text: str) -> str | None:
        return None if await wait_for_tool() else "Again."

    async def score(self, answer: str) -> float:
        return float(len(self.conversation) % 2)


class TimedScript(ScriptedEngine):
    times: DrawnTimes

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        async with self.times.of_completion(session, self):
            return await super().generate(ids, sampling, session)

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        async with self.times.of_publish(self):
            await super().update_weights(weights, version)


class TimedTrainer(LoggedTrainer):
    def update(self, batch: Batch) -> StepStats:
        time.sleep(WORKLOAD.train_s)
        return super().update(batch)


@dataclass
class Run:
    seconds: float
    staleness: float
    """The mean of the trained episodes, by the versions that they began under."""


async def play_both(folder: Path, out: Path) -> tuple[Run, Run]:
    """A run with the real controller, driver and scheduler, and the simulated one."""
    objects = Overrides(given={"<waits>": Waits})
    config, log = load_run_config(flags=FLAGS, objects=objects).config, Log()
    codec, services, trainer = load_codec_once(folder), EnvServices(), TimedTrainer(log)
    engine = TimedScript(lambda _: AssistantTurn(text="so"), codec.renderer(()))
    engine.times = DrawnTimes(workload=WORKLOAD, seed=SEED, groups_per_step=GROUPS)
    envs = bind_envs(config, objects)
    collector = make_collector(engine, codec, config, 1.0)
    controller = Controller(
        parts=Parts(
            config=config,
            envs=envs,
            codec=codec,
            services=services,
            engine=engine,
            learner=cast("Any", trainer),
            jobs=JobMaker(envs, services=services, tokenizer=codec.tokenizer, seed=SEED),
            collector=collector,
            eval_collector=collector,
        ),
        store=cast(
            "Any", LoggedStore(log, SimpleNamespace(turns=out, events=out.with_suffix(".events")))
        ),
        observer=Observer(),
        stopping=Stopping(),
        recipe=make_recipe(config.trainer, lambda _: None),
        admission=make_admission(config, objects),
    )
    indices = count()
    await controller.begin(lambda: TaskRef(env=0, index=next(indices)))
    began = time.perf_counter()
    for _ in range(STEPS):
        await controller.step()
    seconds = time.perf_counter() - began
    services.close()
    simulated = simulate(make_schedule(config), WORKLOAD, seed=SEED)
    return (
        Run(seconds, mean(age for batch in trainer.batches for age in ages(batch))),
        Run(simulated.seconds, mean(simulated.staleness)),
    )


def ages(batch: Batch) -> list[int]:
    assert batch.version is not None
    began_R = np.minimum.reduceat(
        np.where(batch.mask_N, batch.versions_N, batch.version), batch.offsets_R1[:-1]
    )
    return [batch.version - int(began) for began in began_R]


async def test_one_constant_of_the_scheduler_moves_both(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, simulated = await play_both(tiny_folder, tmp_path / "turns.jsonl")
    monkeypatch.setattr(Schedule, "outstanding", property(lambda self: self.groups_per_step))
    slow_real, slow_simulated = await play_both(tiny_folder, tmp_path / "slow.jsonl")
    assert slow_simulated.seconds > 1.5 * simulated.seconds
    # A busy machine adds to real seconds, to all of them alike.
    assert real.seconds > 0.95 * simulated.seconds
    assert slow_real.seconds > 0.95 * slow_simulated.seconds
    assert simulated.staleness > 1.0
    assert slow_simulated.staleness == slow_real.staleness == 0.0
    assert real.staleness > 0.5
