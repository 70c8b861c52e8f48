"""The control loop of training, one step at a time: synchronous or not, the same code.

    tasks ── episodes ──▶ groups ── batch, advantages ──▶ update ── publish ──▶ engine
      ▲                      │                              │                      │
    sampler             Parquet file                  gap, verified            version up

When anything begins a `Scheduler` says; groups are played beside this loop by a `RolloutDriver`.
In a synchronous run the engine never samples from weights older than the trainer's, and
`DevicePolicy` says how the two make way for each other around an update:

    with update_turn(): ── update ── before_publish ── publish ──▶ the engine samples again
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from typing import Final

import numpy as np

from agentrl.boundary import one_line
from agentrl.errors import ConfigError, RunError
from agentrl.orchestration.device_policy import DevicePolicy
from agentrl.orchestration.evaluate import EvalResult, evaluate
from agentrl.orchestration.model_files import make_limits
from agentrl.orchestration.observers import Observer
from agentrl.orchestration.open_groups import OpenGroups
from agentrl.orchestration.parts import Parts
from agentrl.orchestration.reports import (
    stop_of_alarms,
    unused_tools,
    why_untrained,
    worst_episodes,
)
from agentrl.orchestration.schedules import make_schedule
from agentrl.orchestration.stopping import GivenUp, Stopping
from agentrl.orchestration.store import RunStore
from agentrl.orchestration.whereabouts import describe_waits
from agentrl.rollout import (
    Collected,
    GroupJob,
    LongPrompt,
    PlayedGroup,
    TaskRef,
    episode_metrics,
    make_batch,
)
from agentrl.rollout.admission import CheckedAdmission, drop_what_nobody_trains_on
from agentrl.rollout.codec import OddPrompt
from agentrl.rollout.collected import gathered
from agentrl.rollout.driver import ForTrainer, RolloutDriver
from agentrl.rollout.selection import Selection
from agentrl.rollout.turn_log import TurnLog
from agentrl.run_dir import read_lines
from agentrl.schedule import Schedule, Scheduler, Wait
from agentrl.schedule.events import (
    BatchTrained,
    FinishStep,
    PublishWeights,
    StepFinished,
    TrainBatch,
    WeightsPublished,
)
from agentrl.tools.threads import EpisodeThread
from agentrl.trainer.algorithms.corrections import are_rejected
from agentrl.trainer.algorithms.recipe import BatchRecipe
from agentrl.trainer.algorithms.staleness import lag_metrics, mask_late
from agentrl.trainer.updates import CRITIC_ALONE, GapAlarm, StepStats, SupervisedStats
from agentrl.types import Batch, Episode

_WAKE_S: Final = 0.5
"""How often the loop wakes during an update; a signal just before it falls asleep is not heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did."""

    step: int
    metrics: Mapping[str, float]
    """Everything that `metrics.jsonl` holds of the step."""
    collected: Collected
    stats: StepStats
    eval: EvalResult | None = None


def stat_numbers(stats: SupervisedStats) -> dict[str, float]:
    """The numbers of an update by the names that `metrics.jsonl` has them under."""
    numbers = {k: float(v) for k, v in asdict(stats).items() if isinstance(v, int | float)}
    numbers["updates"] = numbers.pop("step")
    numbers["update_s"] = numbers.pop("seconds")
    return numbers


class Controller:
    """Runs steps with the parts of a run; what they leave behind goes into the store."""

    def __init__(
        self,
        *,
        parts: Parts,
        store: RunStore,
        observer: Observer,
        stopping: Stopping,
        recipe: BatchRecipe,
        admission: CheckedAdmission,
    ) -> None:
        self._stopping = stopping
        self._update_s = self._batch_at = 0.0
        """Seconds of the last update; when its batch was there, 0 for none."""
        self._parts = parts
        self._trainer = parts.trainer
        self._device = DevicePolicy(parts.config, parts.engine, self._trainer)
        self._store = store
        self._observer = observer
        self._isolation: list[tuple[str, ...]] = []
        self._left_out: set[str] = set()
        """Tasks that were left out."""
        self._driver: RolloutDriver | None = None
        self._log: TurnLog | None = None
        self._has_begun = False
        self._number = self._num_ended = 0
        """The step that is made or was made last; groups that have ended and are not taken."""
        self.version = 0
        """The policy version that the engine serves: +1 for each update that was published."""
        self.recipe = recipe
        """What is done to batches; its state is that behind the last batch."""
        self._admission = admission
        self._selection = Selection(
            config=parts.config.rollout,
            limits=make_limits(parts.config, parts.engine.context_length),
            seed=parts.config.seed,
        )

    async def begin(self, draw_one: Callable[[], TaskRef], step: int = 0, groups: str = "") -> None:
        """Go on behind a step; `groups` is what `open_groups` gave then.

        `draw_one` gives the task of a further group. Nothing is played before the first `step`.
        """
        await self.aclose()
        parts, rollout = self._parts, self._parts.config.rollout
        self._open = open_groups = OpenGroups(rollout, parts.jobs, draw_one, groups)
        scheduler = Scheduler(
            make_schedule(parts.config),
            self._admission,
            step=step,
            version=self.version,
            ticket=open_groups.next_ticket,
            open_tickets=open_groups.tickets,
        )
        if not parts.config.deterministic:  # there an episode played again is the same one
            self._log = self._open_turn_log(scheduler.schedule)
        self._driver = RolloutDriver(
            engine=parts.engine,
            codec=parts.codec,
            settings=parts.collector.settings,
            scheduler=scheduler,
            group_size=rollout.group_size,
            draw=open_groups.draw,
            another=self._choose_and_replace_group,
            on_group=self._report_ended_group,
            on_stall=self._report_stall,
            log=self._log,
        )
        self._has_begun, self._number, self._num_ended, self._batch_at = False, step, 0, 0.0

    def open_groups(self) -> str:
        """The groups that were drawn and not trained on, as JSON; empty if there are none."""
        scheduler = self._require_driver().scheduler
        return self._open.to_json(scheduler.open_tickets, scheduler.next_ticket, self._number)

    def waits(self) -> list[Wait]:
        """Who waits for whom, the longest first."""
        return self._driver.scheduler.waits() if self._driver is not None else []

    async def aclose(self) -> None:
        """End the episodes that run."""
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.aclose()
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def forget_trained_turns(self) -> None:
        """Let the log of turns go that a checkpoint has made needless."""
        driver = self._require_driver()
        if self._log is not None and driver.scheduler.step + 1 == driver.scheduler.schedule.steps:
            self._log.forget()
        elif self._log is not None:
            self._log.keep_groups(driver.open_groups)

    def _open_turn_log(self, schedule: Schedule) -> TurnLog:
        """The turns of open episodes, which hold for these settings alone."""
        directory, temperature = self._store.directory, self._parts.config.rollout.temperature
        log = TurnLog(
            directory.turns,
            self.version,
            run="".join(str(line.get("time")) for line in read_lines(directory.events)[:1]),
            settings={
                "rollout.temperature": temperature,
                "async.staleness": schedule.staleness,
                "async.late": schedule.late,
                "updates of a batch": schedule.updates,
            },
        )
        if num := sum(log.recorded.values()):
            episodes = sum(map(bool, log.recorded.values()))
            self._store.event("turns", recorded=num, episodes=episodes)
            self._observer.note(f"goes on with {num} turns of {episodes} episodes")
        elif log.recorded and log.changed:
            self._observer.note(f"open episodes begin again, with another {', '.join(log.changed)}")
        return log

    async def step(self) -> StepResult:
        """One optimizer step: wait for a batch, update, publish, write down.

        Raises:
            GivenUp: the run is to stop, and this step would take too long; it changed nothing.
        """
        times: dict[str, float] = {}
        started = time.perf_counter()
        self._trainer.has_changed = False
        batch = await self._stopping.or_give_up(self._wait_for_batch())
        self._stopping.check_time(self._update_s)  # by that of the step before
        self._number = number = batch.step
        collected = self._take_groups(batch)
        times["rollout_s"] = (now := time.perf_counter()) - started
        # What runs ahead is sampled beside the step before, too.
        is_ahead = self._parts.config.async_.staleness > 0
        sampling_s = now - ((is_ahead and self._batch_at) or started)
        self._batch_at = now
        stats = await self._update_and_publish_weights(collected, batch, times)
        self._update_s = times["train_s"] + times["publish_s"]
        if self._log is not None:
            times["turn_log_s"] = self._log.take_cpu_s()
        times["step_s"] = time.perf_counter() - started
        metrics = self._gather_step_metrics(collected, stats, times)
        metrics["tokens_per_s"] = metrics.get("sampled_tokens", 0.0) / sampling_s
        result = StepResult(step=number, metrics=metrics, collected=collected, stats=stats)
        result = await self._add_heldout_evaluation_if_due(result)
        self._store.write_step(result.step, result.metrics, collected)
        self._observer.episodes(result.step, collected.scored)
        self._observer.step(result.step, result.metrics)
        if stats.alarm is not None and stats.alarm.final:
            raise RunError(
                stop_of_alarms(stats.alarm, collected, self._store.episodes_file(number))
            )
        return result

    async def _update_and_publish_weights(
        self, collected: Collected, taken: TrainBatch, times: dict[str, float]
    ) -> StepStats:
        """Update and publish, while the engine makes way if it has to."""
        driver, training, updates = self._require_driver(), time.perf_counter(), self._trainer.step
        async with self._device.update_turn():
            stats = await self._train_in_thread(collected, taken)
            publishing = time.perf_counter()
            times["train_s"] = publishing - training
            await self._device.before_publish()
            is_new = not stats.skipped or self._device.publishes_always
            driver.feed(BatchTrained(max(1, self._trainer.step - updates) if is_new else 0))
            action = await self._wait_for_action()
            if isinstance(action, PublishWeights):
                await self._parts.engine.update_weights(self._trainer.weights(), action.version)
                self.version = action.version
                driver.feed(WeightsPublished())
                action = await self._wait_for_action()
            assert isinstance(action, FinishStep)
        times["publish_s"] = time.perf_counter() - publishing
        return stats

    async def _wait_for_batch(self) -> TrainBatch:
        """Let the step before be over, and wait for the groups of this one."""
        self._observer.phase("rollout")
        driver = self._require_driver()
        if self._has_begun:
            driver.feed(StepFinished())
        else:
            self._has_begun = True
            driver.begin()
        action = await self._wait_for_action()
        assert isinstance(action, TrainBatch)
        return action

    async def _wait_for_action(self) -> ForTrainer:
        driver = self._require_driver()
        while (action := await driver.next()) is None:
            pass
        return action

    def _require_driver(self) -> RolloutDriver:
        assert self._driver is not None, "call begin first"
        return self._driver

    def _report_ended_group(self, _: PlayedGroup) -> None:
        self._num_ended += 1
        self._observer.groups(self._num_ended, self._open.count_drawn(self._number + 1))

    def _report_stall(self, waits: Sequence[Wait]) -> None:
        """Say who waits for whom, when nothing has happened for a long time."""
        lines = describe_waits(waits)
        self._store.event("stall", waits=lines)
        self._observer.warn("\n  ".join(["nothing has happened for a while:", *lines[:5]]))

    def _take_groups(self, batch: TrainBatch) -> Collected:
        """The groups of a batch, and what there is to say of them."""
        number, parts = batch.step, self._parts
        collected = gathered(self._require_driver().take(batch.tickets))
        self._num_ended -= collected.num_groups
        if (isolation := parts.isolation) != self._isolation:
            self._isolation = isolation
            found = [{"backend": name, "holds": held} for name, *held in isolation]
            self._store.event("isolation", step=number, sandboxes=found)
        self._warn_of_left_out_tasks(number, "prompt_too_long", collected.too_long)
        self._warn_of_left_out_tasks(number, "prompt_no_text", collected.no_text)
        warning = unused_tools(collected, parts.envs)
        if warning is not None:
            self._observer.warn(warning)
        return collected

    def _warn_of_left_out_tasks(
        self, number: int, event: str, prompts: Sequence[LongPrompt | OddPrompt]
    ) -> None:
        """Say once of each task that it was left out."""
        new = {p.task: str(p) for p in prompts if p.task not in self._left_out}
        if new:
            self._left_out |= new.keys()
            self._observer.warn(f"step {number}: left out: {one_line(next(iter(new.values())))}")
            self._store.event(event, step=number, tasks=[*new.values()])

    def _update_on_collected(self, collected: Collected, taken: TrainBatch) -> StepStats:
        trainer, ahead = self._trainer, self._parts.config.async_
        batch = self._make_train_batch(collected.episodes, collected.greedy)
        batch = replace(batch, version=taken.version)
        if ahead.late == "mask":
            batch = mask_late(batch, taken.oldest)
        ages = lag_metrics(batch) if ahead.staleness else {}
        if not collected.episodes:  # what a recipe needs of a batch is not in one without any
            nothing_N = np.zeros(0, dtype=np.float32)
            return trainer.update(replace(batch, advantages_N=nothing_N, weights_N=nothing_N))
        batch = self.recipe.prepare(batch, trainer)
        return replace(
            trainer.update(batch),
            batch_statistics=self.recipe.measure(batch) | ages,
            rejected=frozenset(compress(batch.episode_ids, are_rejected(batch))),
        )

    def _make_train_batch(self, episodes: Sequence[Episode], greedy: Sequence[Episode]) -> Batch:
        """With the rewards that are trained on."""
        shape, rollout = self._selection.shape_reward, self._parts.config.rollout
        return make_batch(
            [*map(shape, episodes)],
            temperature=rollout.temperature,
            greedy=[*map(shape, greedy)] if rollout.greedy_member else None,
        )

    def _choose_and_replace_group(self, ticket: int, group: PlayedGroup) -> GroupJob | None:
        """Drop what of a group nobody trains on; the job of another, if one is to be played."""
        teaches = self._is_group_worth_training
        if drop_what_nobody_trains_on(group, self._selection, self._admission, teaches):
            return self._open.draw_another(ticket)
        return None

    def _is_group_worth_training(self, group: PlayedGroup) -> bool:
        """True if the estimator has an advantage for any token of the group, seen alone."""
        batch = self._make_train_batch(group.episodes, [group.greedy] if group.greedy else [])
        # Of what other groups of the step have it may have nothing.
        num = len(group.episodes)
        keys_U = batch.keys_U or (None,) * sum(len(e.turns) for e in group.episodes)
        parts_E = batch.parts_E or {"none": np.zeros(num)}
        greedy_E = np.full(num, np.nan) if batch.greedy_E is None else batch.greedy_E
        batch = replace(batch, keys_U=keys_U, parts_E=parts_E, greedy_E=greedy_E)
        return self.recipe.teaches(batch)

    async def _train_in_thread(self, collected: Collected, taken: TrainBatch) -> StepStats:
        number = taken.step
        self._observer.phase("train")
        # A thread, so that the loop looks after servers and sandboxes meanwhile; a daemon, since
        # one that was given up may be inside of a long product.
        thread = EpisodeThread("agentrl-update")
        updating = asyncio.create_task(
            thread.call(self._update_on_collected, math.inf, collected, taken)
        )
        try:
            while not updating.done():
                await asyncio.wait([updating], timeout=_WAKE_S)
            stats = updating.result()
        finally:
            updating.cancel()
            thread.stop()
        if stats.value_skipped is not None:
            self._observer.warn(f"step {number}: {stats.value_skipped}: it was left as it is")
            self._store.event("critic_skipped", step=number, reason=stats.value_skipped)
        if stats.alarm is not None:
            self._report_gap_alarm(stats.alarm, collected, number)
        elif stats.skipped and stats.skipped != CRITIC_ALONE:
            lines = why_untrained(collected, stats.rejected)
            shown = "\n  ".join([*map(one_line, lines[:3]), "... all of them are in events.jsonl"])
            self._observer.warn(f"step {number} changed nothing ({stats.skipped}):\n  {shown}")
            self._store.event("nothing_trained", step=number, reason=stats.skipped, episodes=lines)
        return stats

    def _report_gap_alarm(self, alarm: GapAlarm, collected: Collected, number: int) -> None:
        lines = worst_episodes(alarm, collected, self._store.episodes_file(number))
        shown = "\n  ".join(lines)
        self._observer.warn(f"step {number} is not trained on: {alarm.reason}; worst:\n  {shown}")
        self._store.event(
            "gap_alarm", step=number, number=alarm.number, reason=alarm.reason, worst=lines
        )

    def _gather_step_metrics(
        self, collected: Collected, stats: StepStats, times: Mapping[str, float]
    ) -> dict[str, float]:
        metrics = episode_metrics(collected) | self._selection.count(collected)
        metrics |= stat_numbers(stats)
        metrics |= {f"loss/{name}": value for name, value in stats.loss_statistics.items()}
        metrics |= {f"gap/lag{lag}": gap for lag, gap in stats.gap_by_lag.items()}
        metrics |= stats.batch_statistics
        metrics |= {"verified": stats.verified_share, **times}
        return metrics

    async def _add_heldout_evaluation_if_due(self, result: StepResult) -> StepResult:
        every = self._parts.config.eval.every
        if not every or result.step % every:
            return result
        try:
            evaluation = await self._stopping.or_give_up(self.evaluate(result.step))
        except GivenUp:
            return result
        metrics = (
            dict(result.metrics)
            | self._make_eval_success_metric(evaluation)
            | {
                "eval/reward": evaluation.reward,
                "eval/turns": evaluation.turns,
            }
        )
        return replace(result, metrics=metrics, eval=evaluation)

    def _make_eval_success_metric(self, evaluation: EvalResult) -> dict[str, float]:
        if evaluation.success is not None:
            return {"eval/success": evaluation.success}
        if self._parts.config.checkpoint.best == "eval/success":
            raise ConfigError(
                "checkpoint.best: got eval/success, but scores are other than 0 and 1 and nothing "
                "says from which on they are a success; declare success_at, or take eval/reward"
            )
        return {}

    async def evaluate(self, step: int) -> EvalResult:
        """Play the held-out tasks with the current weights and write the episodes down."""
        self._observer.phase("eval")
        result, collected = await evaluate(self._parts, step, self._observer.groups)
        self._store.write_eval(step, collected)
        self._observer.episodes(step, collected.episodes)
        self._observer.eval(step, result)
        return result
