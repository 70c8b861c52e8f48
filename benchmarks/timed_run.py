"""Real runs in which turns, updates and publishes take drawn times: those of the virtual clock.

    draw_attempt(workload, ticket, member) ─┬─▶ simulate: under the virtual clock
                                            └─▶ TimedEngine and TimedWalk: by asyncio.sleep

Everything else is real: controller, scheduler, driver, engine, trainer. What is done inside of a
drawn time, such as sampling with the tiny model's weights, is part of it.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import cast
from unittest.mock import patch

import numpy as np

from agentrl.engine import Engine
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.protocol import paused_s
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.evaluate import Interval
from agentrl.orchestration.kinds import EngineKind, EngineSetup
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.run import PlannedRun
from agentrl.schedule import Schedule
from agentrl.schedule.config import Late
from agentrl.schedule.events import BeginEpisode
from agentrl.testing.virtual_clock import Simulated, Workload, draw_attempt, simulate
from agentrl.trainer.trainer import LocalTrainer
from agentrl.trainer.updates import StepStats
from agentrl.types import Batch, Completion, Episode, EpisodeSession, Sampling
from agentrl.weights.source import WeightSource
from benchmarks.learning import cpu_seconds
from benchmarks.learning_tasks import Walk, answer_to
from benchmarks.schedule import MOST_TURNS, make_schedule, make_workload

HELD_OUT_TASKS = 512

_ID = re.compile(r"train-s(\d+)-g(\d+)-m(\d+)-a(\d+)")


def find_attempt(episode: str, groups_per_step: int) -> BeginEpisode | None:
    """Whose the id of an episode is; None if it is none of training."""
    found = _ID.fullmatch(episode)
    if found is None:
        return None
    step, place, member, attempt = map(int, found.groups())
    return BeginEpisode((step - 1) * groups_per_step + place, member, attempt)


@dataclass(slots=True)
class EpisodeTimes:
    """What is left of the times that were drawn for an episode."""

    episode: str
    turns_s: list[float]
    tool_s: float = 0.0
    """Of the tool behind this turn's completion."""


_TIMES = ContextVar[EpisodeTimes | None]("times", default=None)
"""Set by the engine in the task of an episode, for its environment."""


async def wait_for_tool() -> bool:
    """Let the tool of this turn take its time; true behind the last turn that was drawn."""
    times = _TIMES.get()
    if times is None:
        return False
    await asyncio.sleep(times.tool_s)
    return not times.turns_s


@dataclass(slots=True, kw_only=True)
class DrawnTimes:
    """The times of a run; of a turn's a random share is the completion's, the rest the tool's."""

    workload: Workload
    seed: int
    groups_per_step: int
    begun: set[int] = field(default_factory=set[int])
    """The tickets of all episodes that began."""

    @asynccontextmanager
    async def of_completion(self, session: EpisodeSession, engine: Engine) -> AsyncGenerator[None]:
        """What is done inside takes a drawn time, in which the engine does not stand still."""
        loop = asyncio.get_running_loop()
        ends = loop.time() - paused_s(engine) + self._draw_completion_s(session.key)
        yield
        left = 0.0
        while left >= 0:  # what has passed of it in a pause comes again
            await asyncio.sleep(left)
            left = ends - loop.time() + paused_s(engine)

    @asynccontextmanager
    async def of_publish(self, engine: Engine) -> AsyncGenerator[None]:
        """The engine stands still as long as was drawn."""
        ends = time.perf_counter() + self.workload.publish_s
        await engine.pause()
        yield
        await asyncio.sleep(ends - time.perf_counter())
        await engine.resume()

    def count_missing_turns(self, episode: Episode) -> int:
        """How many turns were drawn for an episode and not played."""
        begin = find_attempt(episode.id, self.groups_per_step)
        assert begin is not None
        drawn = draw_attempt(self.workload, begin, seed=self.seed)
        return len(drawn.turns_s) - len(episode.turns)

    def _draw_completion_s(self, episode: str) -> float:
        """0 outside of training."""
        begin, times = find_attempt(episode, self.groups_per_step), _TIMES.get()
        if begin is None:
            _TIMES.set(None)
            return 0.0
        if times is None or times.episode != episode:  # a task begins with what its maker had
            self.begun.add(begin.ticket)
            drawn = draw_attempt(self.workload, begin, seed=self.seed)
            _TIMES.set(times := EpisodeTimes(episode, [*drawn.turns_s]))
        turn_s, left = times.turns_s.pop(0), len(times.turns_s)
        share = Random(f"{self.seed}/{episode}/{left}").random()
        times.tool_s = (1 - share) * turn_s
        return share * turn_s


class TimedEngine(LocalEngine):
    """The engine in this process; completions and new weights take the drawn times."""

    times: DrawnTimes

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: EpisodeSession,
        *,
        cache_key: str | None = None,
    ) -> Completion:
        """Sampled at the beginning of its time: so its tokens are as old as they can be."""
        async with self.times.of_completion(session, self):
            return await super().generate(ids, sampling, session, cache_key=cache_key)

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """As in `LocalEngine`."""
        async with self.times.of_publish(self):
            await super().update_weights(weights, version)


@dataclass(frozen=True, slots=True)
class TimedKind(EngineKind):
    """Starts a `TimedEngine` with weights of its own."""

    times: DrawnTimes
    honours_seeds = True
    samples_all_rows = False

    def start(self, setup: EngineSetup) -> Engine:
        """Over the model of the run."""
        model = load_model(setup.folder, num_ids=setup.codec.tokenizer.vocab_size)
        engine = TimedEngine(model, setup.config.engine)
        engine.times = self.times
        return engine


class TimedWalk(Walk):
    """Keys one after the other, as many as were drawn, and a tool that takes its time behind each.

    The score is the share of right answers; one is a success if all are.
    """

    success_at = 1.0
    passed: int

    async def setup(self) -> None:
        """Begin with the first key."""
        await super().setup()
        self.right = 0

    async def reply(self, text: str) -> str | None:
        """The next key, when the tool is done."""
        was_last = await wait_for_tool()
        self.right += text.strip() == str(answer_to(self.task.answer[self.passed]))
        self.passed += 1
        is_over = was_last or self.passed == self.config.steps
        return None if is_over else f"Key {self.task.answer[self.passed]}."

    async def score(self, answer: str) -> float:
        """The share of right answers."""
        return self.right / max(1, self.passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """Which run is played."""

    seed: int
    steps: int
    staleness: int
    turn_s: float
    generation_s: float
    """The mean time that a synchronous step's episodes take."""
    late: str = "wait"
    evaluates: bool = False
    """On held-out tasks, before and after; that is not timed."""

    @property
    def schedule(self) -> Schedule:
        """As it is simulated."""
        schedule = make_schedule(self.steps, self.staleness)
        return replace(schedule, late=cast("Late", self.late))

    @property
    def workload(self) -> Workload:
        """What its times are drawn from."""
        return make_workload(self.generation_s, self.turn_s)

    def simulate(self) -> Simulated:
        """The same under the virtual clock."""
        return simulate(self.schedule, self.workload, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a run came to; sequences have an entry for each step."""

    run: TimedRun
    cpu_s: float
    ends_s: Sequence[float]
    """When the step was over."""
    tokens: Sequence[int]
    """Trained until its end."""
    rewards: Sequence[float]
    """The mean of its episodes."""
    ages: Sequence[float]
    """The mean staleness of its trained tokens."""
    update_s: Sequence[float]
    """What its update took of the drawn time."""
    turns_missing: int
    """That were drawn and not played, because a completion was cut."""
    begun: Set[int]
    """Tickets whose episodes began."""
    trained: Mapping[int, float]
    """Episodes that were trained on, by ticket; one whose tokens were left out in part counts in
    part."""
    before: Interval | None
    after: Interval | None
    load: float
    """Of the machine, at the end."""

    @property
    def seconds(self) -> float:
        """From the first draw to the end of the last step."""
        return self.ends_s[-1]


@dataclass(slots=True)
class UpdateLog:
    """Lets updates take their drawn time, and keeps what was trained on."""

    seconds: float
    groups_per_step: int
    trained: dict[int, float] = field(default_factory=dict[int, float])
    tokens: list[int] = field(default_factory=list[int])
    """Trained until the end of each update."""

    @contextmanager
    def patched(self) -> Generator[None]:
        """Inside, trainers are timed and watched."""
        update = LocalTrainer.update

        def update_in_time(trainer: LocalTrainer, batch: Batch) -> StepStats:
            ends = time.perf_counter() + self.seconds
            stats = update(trainer, batch)
            self._note_batch(batch)
            time.sleep(max(0.0, ends - time.perf_counter()))
            return stats

        with patch.object(LocalTrainer, "update", update_in_time):
            yield

    def _note_batch(self, batch: Batch) -> None:
        sampled_N = batch.mask_N if batch.rejected_N is None else batch.mask_N | batch.rejected_N
        trained_R, sampled_R = (
            np.add.reduceat(of_N, batch.offsets_R1[:-1], dtype=np.int64)
            for of_N in (batch.mask_N, sampled_N)
        )
        for row, episode in enumerate(batch.episode_R):  # each has one segment
            begin = find_attempt(batch.episode_ids[int(episode)], self.groups_per_step)
            assert begin is not None
            share = float(trained_R[row] / sampled_R[row])
            self.trained[begin.ticket] = self.trained.get(begin.ticket, 0.0) + share
        self.tokens.append(batch.num_trained + (self.tokens[-1] if self.tokens else 0))


def play(run: TimedRun, model: Path, folder: Path) -> Played:
    """Play a run from a model; its directory goes into `folder`."""
    groups = run.schedule.groups_per_step
    times = DrawnTimes(workload=run.workload, seed=run.seed, groups_per_step=groups)
    log = UpdateLog(run.workload.train_s, groups)
    objects = Overrides(given={"<timed>": TimedKind(times)})
    loaded = load_run_config(flags=_make_flags(run, model, folder), objects=objects)
    metrics, ends_s, turns_missing = list[Mapping[str, float]](), list[float](), 0
    with log.patched(), PlannedRun(loaded, objects=objects) as planned:
        before = planned.evaluate().pass_at[1] if run.evaluates else None
        began, cpu_s = time.perf_counter(), cpu_seconds()
        for step in planned:
            ends_s.append(time.perf_counter() - began)
            metrics.append(step.metrics)
            turns_missing += sum(times.count_missing_turns(e) for e in step.collected.episodes)
        cpu_s = cpu_seconds() - cpu_s
        after = planned.evaluate().pass_at[1] if run.evaluates else None
    return Played(
        run=run,
        cpu_s=cpu_s,
        ends_s=ends_s,
        tokens=log.tokens,
        rewards=[of_step["reward"] for of_step in metrics],
        ages=[of_step.get("lag/mean", 0.0) for of_step in metrics],
        update_s=[of_step["update_s"] for of_step in metrics],
        turns_missing=turns_missing,
        begun=times.begun,
        trained=log.trained,
        before=before,
        after=after,
        load=os.getloadavg()[0],
    )


def _make_flags(run: TimedRun, model: Path, folder: Path) -> list[str]:
    """The command line of a run."""
    schedule = run.schedule
    name = f"{run.staleness}-{run.late}-{run.seed}-{time.time_ns()}"
    return [
        *("--env", "benchmarks.timed_run:TimedWalk", "--env.steps", str(MOST_TURNS)),
        *("--model", str(model), "--seed", str(run.seed), "--engine", "<timed>"),
        *("--runs-dir", str(folder), "--name", name, "--steps", str(run.steps)),
        *("--tasks-per-step", str(schedule.groups_per_step)),
        *("--group-size", str(schedule.members), "--threads", "1", "--lr", "1e-3"),
        *("--rollout.concurrency", str(schedule.concurrency), "--rollout.max-new-tokens", "4"),
        *("--async.staleness", str(run.staleness), "--async.late", run.late),
        *("--correct", "tis" if run.staleness else "none"),
        *("--checkpoint.every", str(run.steps), "--eval.tasks", str(HELD_OUT_TASKS)),
    ]
