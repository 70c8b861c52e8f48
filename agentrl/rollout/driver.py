"""`RolloutDriver`: carries out what a scheduler says, and tells it what came of that.

    scheduler ── DrawGroup, BeginEpisode, JudgeGroup ──▶ tasks of the event loop
        ▲                                                    │
        └── GroupDrawn, EpisodeWaits, EpisodeEnded ◀─────────┘

What concerns the trainer is handed on to whoever drives that (`next`). A task whose prompt is no
text or leaves no room for a turn is left out before: it is no episode. One failed episode never
ends its siblings; only a RunError or a cancellation does.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from agentrl.aio import LoopWatch
from agentrl.engine import Engine
from agentrl.engine.protocol import cache_fill_s, capacity_tokens, paused_s
from agentrl.errors import ConfigError, EpisodeError
from agentrl.rollout.breaker import Breaker
from agentrl.rollout.codec import Codec, LongPrompt, OddPrompt, odd_prompt, too_long
from agentrl.rollout.collected import PlayedGroup
from agentrl.rollout.episode import EpisodeLimits, EpisodeRunner, MakeRunner
from agentrl.rollout.episode_record import EpisodeRecord, GroupJob
from agentrl.rollout.fixed_order import Lockstep
from agentrl.rollout.selection import drop
from agentrl.rollout.turn_log import TurnLog
from agentrl.schedule import Concurrency, Scheduler, Wait
from agentrl.schedule.cache import KEEP_S
from agentrl.schedule.events import (
    Action,
    BeginEpisode,
    CapacityChanged,
    DrawGroup,
    DropGroup,
    EpisodeEnded,
    EpisodeWaits,
    Event,
    FinishStep,
    GroupDrawn,
    GroupJudged,
    JudgeGroup,
    Owner,
    PublishWeights,
    Stalled,
    StopEpisode,
    Tick,
    TrainBatch,
    WakeAt,
)
from agentrl.tools import user_code
from agentrl.types import Completion, EpisodeKey, EpisodeSession, Invalid, Sampling

Another: TypeAlias = Callable[[int, PlayedGroup], GroupJob | None]
"""Asked for each group that has ended, by its ticket: a job to be played in its place, or None."""
ForTrainer: TypeAlias = TrainBatch | PublishWeights | FinishStep


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """How episodes are played; see `RolloutConfig` for the meaning of the fields."""

    limits: EpisodeLimits
    temperature: float
    concurrency: Concurrency
    attempts: int
    max_invalid_share: float
    fixed_order: bool = False
    """Fixed admission order and batch shapes: see `Lockstep`."""
    make_runner: MakeRunner = EpisodeRunner
    """Where they are played: by default in this process."""


@dataclass(slots=True, eq=False)
class _Attempt:
    """One that runs, or has been broken off and cleans up."""

    begin: BeginEpisode
    group: PlayedGroup
    record: EpisodeRecord
    began: float
    is_broken_off: bool = False
    task: "asyncio.Task[None] | None" = None
    _timer: asyncio.TimerHandle | None = None

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        """Take a timer that will stop it, in place of the one before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer


class RolloutDriver:
    """Plays groups with one engine, as a scheduler says."""

    def __init__(
        self,
        *,
        engine: Engine,
        codec: Codec,
        settings: CollectSettings,
        scheduler: Scheduler,
        group_size: int,
        draw: Callable[[int], GroupJob],
        another: Another | None = None,
        on_group: Callable[[PlayedGroup], None] = lambda _: None,
        on_stall: Callable[[Sequence[Wait]], None] = lambda _: None,
        log: TurnLog | None = None,
    ) -> None:
        """Nothing begins before `begin`.

        Args:
            engine: samples.
            codec: of its model.
            settings: the budgets.
            scheduler: says what is done when; it counts a greedy member among a group's.
            group_size: members without the greedy one, which is the last.
            draw: gives the job of a ticket.
            another: is asked once for each group, as it ends or is left out; the job that it gives
                is played in its place. It may move the group's episodes to those that are dropped.
            on_group: is told of each group that has ended or was left out.
            on_stall: is told who waits for whom, when nothing has happened for a long time.
            log: takes each turn, and has those of a run that was killed.
        """
        self.scheduler = scheduler
        self._engine, self._codec, self._settings = engine, codec, settings
        self._group_size = group_size
        self._draw, self._another = draw, another
        self._on_group, self._on_stall, self._log = on_group, on_stall, log
        self._loop = asyncio.get_running_loop()
        self._events = deque[Event]()
        self._is_feeding = self._is_closed = False
        self._wake: asyncio.TimerHandle | None = None
        self._for_trainer = asyncio.Queue[ForTrainer | None]()
        self._failure: BaseException | None = None
        self._groups: dict[int, list[PlayedGroup]] = {}
        """By ticket: those that were replaced or left out, then the one that is there."""
        self._keys: set[EpisodeKey] = set()
        self._late: list[PlayedGroup] = []
        """Groups that were given up."""
        self._tasks: dict[asyncio.Task[None], _Attempt] = {}
        """Of all attempts, those that were broken off too."""
        self._running: dict[tuple[int, int], _Attempt] = {}
        """By ticket and member."""
        self._places: dict[str, tuple[int, int]] = {}
        """Ticket and member of the episodes that run, by their ids."""
        self._breaker = Breaker(
            members=scheduler.schedule.members,
            attempts=settings.attempts,
            max_invalid_share=settings.max_invalid_share,
        )
        self._capacity: int | None = None
        """Of the engine's cache, as the scheduler knows it."""
        self._lockstep = Lockstep(engine) if settings.fixed_order else None
        self._runner, self._greedy_runner = (
            settings.make_runner(
                codec=codec,
                generate=self._generate_and_say_whom_it_waits_for,
                limits=settings.limits,
                temperature=temperature,
                paused_s=lambda: paused_s(engine),
                log=log,
                say_owner=self._say_owner,
            )
            for temperature in (settings.temperature, 0.0)
        )

    def feed(self, event: Event) -> None:
        """Tell the scheduler, and do what it says to that and to all that follows from it."""
        self._events.append(event)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._events and not self._is_closed:
                now = self._loop.time()
                for action in self.scheduler.on(self._events.popleft(), now):
                    self._carry_out(action)
        finally:
            self._is_feeding = False

    def begin(self) -> None:
        """Begin whatever can begin."""
        self._say_capacity_if_it_changed()
        self.feed(Tick())

    async def next(self) -> ForTrainer | None:
        """What the trainer is to do next; None says that a group has ended.

        Raises whatever ended the run of an episode: RunError, BreakerTripped.
        """
        async with LoopWatch():  # it names whoever blocks the loop
            action = await self._for_trainer.get()
        if self._failure is not None:
            raise self._failure
        return action

    def take(self, tickets: Sequence[int]) -> list[PlayedGroup]:
        """The groups of these tickets, with those in whose place they were played.

        Those that were given up since the last time come with them.

        Raises:
            BreakerTripped: too many of their episodes have no score.
        """
        groups = [group for ticket in tickets for group in self._groups.pop(ticket)]
        self._keys -= {group.job.key for group in groups}
        self._breaker.take(groups)
        late, self._late = self._late, []
        return groups + late

    @property
    def open_groups(self) -> set[int]:
        """The numbers of the groups that nobody has taken."""
        return {key.group for key in self._keys}

    async def aclose(self) -> None:
        """End what runs, and wait for its end."""
        self._is_closed = True
        if self._wake is not None:
            self._wake.cancel()
        for task, attempt in self._tasks.items():
            if not attempt.is_broken_off:  # those clean up already
                task.cancel()
        await _await_cancelled_tasks(list(self._tasks))
        if self._lockstep is not None:
            await self._lockstep.drain()

    def _carry_out(self, action: Action) -> None:
        match action:
            case DrawGroup(ticket):
                self._groups[ticket] = []
                job = self._draw(ticket)
                oldest = self._log.oldest_version(job.key.group) if self._log else None
                has_begun = self._begin_group(ticket, job)
                self._events.append(GroupDrawn(ticket, not has_begun, oldest))
            case BeginEpisode():
                self._begin_episode(action)
            case StopEpisode():
                self._set_time_of_stop(action)
            case JudgeGroup(ticket):
                self._judge_group(ticket)
            case DropGroup(ticket):
                self._drop_group(ticket)
            case WakeAt(time):
                if self._wake is not None:
                    self._wake.cancel()
                self._wake = self._loop.call_at(time, self._feed_from_timer, Tick())
            case Stalled():
                self._on_stall(self.scheduler.waits())
            case TrainBatch() | PublishWeights() | FinishStep():
                self._for_trainer.put_nowait(action)

    def _begin_group(self, ticket: int, job: GroupJob | None) -> bool:
        """Let a group begin, or one in its place where it is left out; False if none can."""
        while job is not None:
            if job.key in self._keys:
                raise ValueError(
                    f"two jobs have the key of {job.key.id}; each needs one of its own"
                )
            self._keys.add(job.key)
            group = PlayedGroup(job, self._find_unfit(job))
            self._groups[ticket].append(group)
            if group.left_out is None:
                self._breaker.begin(group)
                return True
            job = self._another(ticket, group) if self._another else None
            self._report_ended_group(group)
        return False

    def _judge_group(self, ticket: int) -> None:
        group = self._groups[ticket][-1]
        group.episodes.sort(key=lambda episode: episode.member)
        job = self._another(ticket, group) if self._another else None
        self._report_ended_group(group)
        self._events.append(GroupJudged(ticket, replaced=self._begin_group(ticket, job)))

    def _report_ended_group(self, group: PlayedGroup) -> None:
        self._on_group(group)
        self._for_trainer.put_nowait(None)

    def _drop_group(self, ticket: int) -> None:
        """Give a group up; what of it was scored comes with the next groups that are taken."""
        groups = self._groups.pop(ticket)
        for member in range(self.scheduler.schedule.members):
            if (attempt := self._running.get((ticket, member))) is not None:
                self._break_off(attempt, "late")
        for group in groups:
            drop(group, group.episodes, "late")
        self._breaker.forget(groups)
        self._keys -= {group.job.key for group in groups}
        self._late += groups

    def _find_unfit(self, job: GroupJob) -> LongPrompt | OddPrompt | None:
        """Why no episode can begin; what else goes wrong is the episode's to report."""
        try:
            with user_code(f"making env {job.env}"):
                env = job.make_env()
            limit = self._settings.limits.prompt_tokens
            odd = odd_prompt(env, job.env, job.task)
            return odd or too_long(env, job.env, job.task, self._codec, limit)
        except (EpisodeError, ConfigError):
            return None

    def _begin_episode(self, begin: BeginEpisode) -> None:
        if self._lockstep is not None:
            self._lockstep.join(1)
        group = self._groups[begin.ticket][-1]
        key = group.job.key.of_try(begin.member, begin.attempt)
        record = EpisodeRecord(group.job, key, self._codec.tokenizer.vocab_size)
        attempt = _Attempt(begin, group, record, self._loop.time())
        attempt.task = task = self._loop.create_task(self._play_attempt_and_sort(attempt))
        self._tasks[task] = self._running[begin.ticket, begin.member] = attempt
        task.add_done_callback(self._forget_task)

    def _set_time_of_stop(self, stop: StopEpisode) -> None:
        """Let the attempt be stopped at that time instead of another, or at none."""
        attempt = self._running[stop.ticket, stop.member]
        attempt.set_timer(
            self._loop.call_at(stop.time, self._leave_straggler_behind, attempt)
            if stop.time < math.inf
            else None
        )

    def _leave_straggler_behind(self, attempt: _Attempt) -> None:
        self._break_off(attempt, "straggler")
        stopped = EpisodeEnded(attempt.begin.ticket, attempt.begin.member, stopped=True)
        self._feed_from_timer(stopped)

    def _feed_from_timer(self, event: Event) -> None:
        """As `feed`; an error goes to whoever waits in `next`, since nobody is above a timer."""
        try:
            self.feed(event)
        except Exception as error:  # the loop would log it and go on, and the run would hang
            self._failure = self._failure or error
            self._for_trainer.put_nowait(None)

    def _break_off(self, attempt: _Attempt, why: str) -> None:
        """Cancel an attempt; what it has so far is kept with its group."""
        del self._running[attempt.begin.ticket, attempt.begin.member]
        attempt.set_timer(None)
        attempt.is_broken_off = True
        self._places.pop(attempt.record.id, None)
        record, group = attempt.record, attempt.group
        stopped = Invalid(reason=f"it was stopped ({why})", blame="environment")
        record.outcome = record.outcome or stopped
        episode = replace(record.finish(wall_s=self._loop.time() - attempt.began), dropped=why)
        is_scored = episode.valid and attempt.begin.member < self._group_size
        (group.dropped if is_scored else group.stopped).append(episode)
        assert attempt.task is not None
        attempt.task.cancel()

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        was_given_up = self._tasks.pop(task).is_broken_off
        # Asked for in any case, so that asyncio does not report what has been raised already.
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._is_closed or was_given_up or self._failure is not None:
            return
        self._failure = failure
        if failure is not None:
            self._for_trainer.put_nowait(None)

    async def _play_attempt_and_sort(self, attempt: _Attempt) -> None:
        """Play one attempt, keep it with its group, and say that it has ended."""
        ticket, member = attempt.begin.ticket, attempt.begin.member
        group, name = attempt.group, attempt.record.id
        is_greedy = member == self._group_size
        self._places[name] = ticket, member
        try:
            runner = self._greedy_runner if is_greedy else self._runner
            try:
                episode = await runner.run(attempt.record)
            finally:
                await self._engine.end_session(EpisodeSession(name))
            if attempt.is_broken_off:
                return  # by somebody who was not heard
            attempt.set_timer(None)
            del self._running[ticket, member]
            retry = False
            if isinstance(episode.outcome, Invalid):
                group.invalid.append(episode)
                self._breaker.count_invalid_attempt(episode)
                retry = episode.outcome.retryable
            elif is_greedy:
                group.greedy = episode
            else:
                group.episodes.append(episode)
            # Before this one leaves: whatever begins in its place is in the same next round.
            self.feed(EpisodeEnded(ticket, member, retry))
        finally:
            self._places.pop(name, None)
            if self._lockstep is not None:
                self._lockstep.leave()

    async def _generate_and_say_whom_it_waits_for(
        self, ids: list[int], sampling: Sampling, session: EpisodeSession
    ) -> Completion:
        engine = self._lockstep or self._engine
        self._say_capacity_if_it_changed()
        self._say_owner(session.key, "engine", num_tokens := len(ids))
        try:
            completion = await engine.generate(ids, sampling, session)
            num_tokens += len(completion.ids_T)
            return completion
        finally:
            self._say_owner(session.key, "environment", num_tokens)

    def _say_owner(self, episode: str, owner: Owner, tokens: int = 0) -> None:
        if not self._is_closed and episode in self._places:
            self.feed(EpisodeWaits(*self._places[episode], owner, tokens))

    def _say_capacity_if_it_changed(self) -> None:
        capacity = capacity_tokens(self._engine)
        if self.scheduler.schedule.concurrency == "auto" and capacity != self._capacity:
            self._capacity = capacity
            longest = self._settings.limits.max_context_tokens
            self.feed(CapacityChanged(capacity, longest, cache_fill_s(self._engine) or KEEP_S))


async def _await_cancelled_tasks(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Wait for the end of what was cancelled, also if that is cancelled in its turn."""
    cancelled: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:  # so that asyncio does not report what has been raised already
        if not task.cancelled():
            task.exception()
    if cancelled is not None:
        raise cancelled
