"""A `Scheduler` under simulated time: what a schedule would give, in milliseconds.

    workload = Workload(
        num_turns=lambda rng: rng.randint(1, 8), turn_s=lognormal(10.0, 1.0), train_s=30.0
    )
    schedule = Schedule(groups_per_step=8, members=8, steps=100, staleness=1)
    print(simulate(schedule, workload).seconds)

The draws of an attempt depend on the seed, its ticket, member and number alone, so that two
schedules are compared on the same episodes; `draw_attempt` gives them to a real run, too. With an
`Allowance` more groups are begun, or slow episodes stopped. Faults strike at their times: what an
engine samples goes on when it is back, an episode that fails is tried again, and a run whose
trainer ends goes on behind its last checkpoint, as `agentrl train --resume` does.
"""

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from agentrl.schedule.allowance import Allowance
from agentrl.schedule.config import Schedule
from agentrl.schedule.events import (
    Action,
    BatchTrained,
    BeginEpisode,
    DrawGroup,
    DropGroup,
    EpisodeEnded,
    EpisodeWaits,
    Event,
    FinishStep,
    GroupDrawn,
    GroupJudged,
    JudgeGroup,
    PublishWeights,
    StepFinished,
    StopEpisode,
    Tick,
    TrainBatch,
    WeightsPublished,
)
from agentrl.schedule.scheduler import Scheduler
from agentrl.testing.workload import DrawnAttempt, Fault, Workload, draw_attempt, lognormal

__all__ = ["DrawnAttempt", "Fault", "Simulated", "Workload"]
__all__ += ["draw_attempt", "lognormal", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulated run came to."""

    seconds: float
    steps: int
    trainer_busy: float
    """The share of the time in which the trainer trains or publishes."""
    engine_busy: float
    """The share of the places for episodes that are taken, over the time."""
    staleness: tuple[int, ...]
    """In rising order, of each trained episode: versions since the one that it began under."""
    trained: tuple[tuple[int, int], ...]
    """(ticket, member), in the order of training."""
    lost: tuple[tuple[int, int], ...]
    """(ticket, member) without a score after all attempts, of a dropped group, or stopped."""
    struck: tuple[tuple[Fault, str], ...]
    """The faults that came, and for whom the trainer waited then."""
    resumed: int
    """How often the run went on behind a checkpoint."""
    events: int
    """That the scheduler was told."""

    @property
    def step_s(self) -> float:
        """Seconds a step, in the mean."""
        return self.seconds / self.steps

    def staleness_at(self, quantile: float) -> int:
        """A quantile of the staleness, 0 to 1; 0 if nothing was trained."""
        last = len(self.staleness) - 1
        return self.staleness[round(quantile * last)] if self.staleness else 0


def simulate(
    schedule: Schedule, workload: Workload, allowance: Allowance | None = None, *, seed: int = 0
) -> Simulated:
    """Play a whole run. Raises ValueError if the schedule comes to a stand."""
    return _VirtualRun(schedule, workload, allowance, seed).play()


@dataclass(slots=True)
class _Attempt:
    member: tuple[int, int]
    turns_s: Iterator[tuple[float, float]]
    """Of the turns that are left, and of the answers to them."""
    fails: bool
    number: int
    began: float
    version: int
    is_struck: bool = False
    """It ends by a fault; its turn does not."""
    answer_s: float = 0.0
    """Of the answer to the turn that it is in."""
    is_sampling: bool = False


@dataclass(frozen=True, slots=True)
class _Answered:
    """The environment has answered."""

    attempt: _Attempt


_Later: TypeAlias = Event | _Attempt | _Answered


@dataclass(slots=True)
class _VirtualRun:
    schedule: Schedule
    workload: Workload
    allowance: Allowance | None
    seed: int
    now: float = 0.0
    engine: float = 0.0
    """The engine's time at `since`; it stands still while it takes weights or hangs."""
    since: float = 0.0
    """From then on it goes on, perhaps only later than now."""
    pace: float = 1.0
    """Seconds for each of the engine's."""
    sampling: int = 0
    """Attempts that the engine works for."""
    busy: float = 0.0
    taken: float = 0.0
    """Seconds of all places that episodes took."""
    events: int = 0
    published: int = 0
    order: Iterator[int] = field(default_factory=itertools.count)
    """Of what happens at the same time, the first that was begun comes first."""
    later: list[tuple[float, int, _Later]] = field(default_factory=list[tuple[float, int, _Later]])
    """What comes when, by the real clock; of an attempt, that it fails."""
    turns: list[tuple[float, int, _Attempt]] = field(
        default_factory=list[tuple[float, int, _Attempt]]
    )
    """When turns end, by the engine's clock."""
    stops: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """When attempts are stopped that are open then."""
    open: dict[tuple[int, int], _Attempt] = field(default_factory=dict[tuple[int, int], _Attempt])
    scored: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])
    """By ticket the members with a score and the version that each began under."""
    trained: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """(ticket, member, staleness)"""
    lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    struck: list[tuple[Fault, str]] = field(default_factory=list[tuple[Fault, str]])
    kept: tuple[int, int, int | None, list[int]] = (0, 0, None, [])
    """The last checkpoint: step, version, the next ticket and those that were open."""
    resumed: int = 0
    changes_nothing: bool = False
    """The next update is skipped."""
    scheduler: Scheduler = field(init=False)

    def play(self) -> Simulated:
        self.scheduler = Scheduler(self.schedule, self.allowance)
        hangs = sorted(self.workload.hangs)
        faults = sorted(self.workload.faults, key=lambda fault: fault.at)
        self._come_later(0.0, Tick())
        while not self.scheduler.is_over:
            engine = math.inf
            if self.turns:
                engine = max(self.now, self.since + (self.turns[0][0] - self.engine) * self.pace)
            trainer = self.later[0][0] if self.later else math.inf
            if math.isinf(min(engine, trainer)):
                raise ValueError(f"the schedule came to a stand: {self.scheduler.waits()}")
            if hangs and hangs[0][0] <= min(engine, trainer):
                self.now, seconds = hangs.pop(0)
                self._pause_engine(seconds)
                continue
            if faults and faults[0].at <= min(engine, trainer):
                self._strike(faults.pop(0))
                continue
            self.now = min(engine, trainer)
            event = self._end_turn() if engine < trainer else self._take_later()
            if event is None:
                continue
            self._note_event(event)
            self.events += 1
            for action in self.scheduler.on(event, self.now):
                self._carry_out(action)
        scheduler = self.scheduler
        taken = self.taken + sum(self.now - attempt.began for attempt in self.open.values())
        places = scheduler.peak
        return Simulated(
            seconds=self.now,
            steps=scheduler.step,
            trainer_busy=self.busy / self.now if self.now else 0.0,
            engine_busy=taken / (self.now * places) if self.now and places else 0.0,
            staleness=tuple(sorted(staleness for *_, staleness in self.trained)),
            trained=tuple((ticket, member) for ticket, member, _ in self.trained),
            lost=tuple(self.lost),
            struck=tuple(self.struck),
            resumed=self.resumed,
            events=self.events,
        )

    def _come_later(self, seconds: float, event: _Later) -> None:
        heapq.heappush(self.later, (self.now + seconds, next(self.order), event))

    def _take_later(self) -> Event | None:
        """What was to come now; None if its group was given up, or its attempt has ended."""
        event = heapq.heappop(self.later)[2]
        if isinstance(event, _Attempt):
            return self._end_attempt(event)
        if isinstance(event, _Answered):
            return self._go_on_after_answer(event.attempt)
        if isinstance(event, EpisodeEnded):
            return self._stop_attempt(event)
        is_given_up = isinstance(event, GroupJudged) and event.ticket not in self.scored
        return None if is_given_up else event

    def _strike(self, fault: Fault) -> None:
        """Let a fault have its effect; those that end a run come late where it is stopped."""
        self.now = max(self.now, fault.at)
        owners = [wait.owner for wait in self.scheduler.waits() if wait.who == "the trainer"]
        self.struck.append((fault, owners[0] if owners else "nobody"))
        work = self.workload
        late_s = {"hangs": work.deadline_s, "slow": work.deadline_s / 2}.get(fault.kind, 0.0)
        if fault.role == "trainer":
            self._strike_trainer(fault, late_s)
        elif fault.role == "engine" and fault.kind != "wrong":
            lost_s = late_s + (0.0 if fault.kind == "slow" else work.restart_s)
            self._pause_engine(lost_s)
            self._delay_trainer(lost_s, WeightsPublished)
        elif victims := [attempt for attempt in self.open.values() if not attempt.is_struck]:
            if fault.role != "sandbox host" or fault.kind in ("slow", "wrong"):
                victims = [Random(f"{self.seed}/{fault.at}").choice(victims)]
            for victim in victims:  # all of them are on the host
                victim.fails |= fault.kind != "slow"  # what is late, but in time, costs time alone
                victim.is_struck = True
                self._come_later(late_s, victim)

    def _strike_trainer(self, fault: Fault, late_s: float) -> None:
        if fault.kind == "slow":
            self._delay_trainer(late_s, BatchTrained)
        elif fault.kind == "wrong":
            self.changes_nothing = True
        else:
            self.now += late_s + self.workload.restart_s
            self._resume()

    def _delay_trainer(self, seconds: float, kind: type[Event]) -> None:
        self.later = [
            (time + seconds * isinstance(event, kind), place, event)
            for time, place, event in self.later
        ]
        heapq.heapify(self.later)

    def _note_event(self, event: Event) -> None:
        """Keep what later turns, or another process after this one, begin with."""
        scheduler, step = self.scheduler, self.scheduler.step + 1
        if isinstance(event, WeightsPublished):
            self.published = scheduler.version
        if isinstance(event, StepFinished) and step % self.workload.checkpoint_every == 0:
            self.kept = step, scheduler.version, scheduler.next_ticket, scheduler.open_tickets

    def _resume(self) -> None:
        """Another process goes on behind the last checkpoint; what came after it never was."""
        step, version, ticket, again = self.kept
        self.resumed += 1
        for attempt in list(self.open.values()):
            self._leave_place(attempt)
        self.turns, self.later, self.scored = [], [], {}
        kept = {*range(ticket or 0)} - {*again}
        self.trained = [found for found in self.trained if found[0] in kept]
        self.lost = [place for place in self.lost if place[0] in kept]
        self.published = version
        self.scheduler = Scheduler(
            self.schedule,
            self.allowance,
            step=step,
            version=version,
            ticket=ticket,
            open_tickets=again,
        )
        self._come_later(0.0, Tick())

    def _tell_engine_time(self) -> float:
        return self.engine + max(0.0, self.now - self.since) / self.pace

    def _pause_engine(self, seconds: float) -> None:
        self.engine, self.since = self._tell_engine_time(), max(self.now, self.since) + seconds

    def _mark_sampling(self, attempt: _Attempt, is_sampling: bool) -> None:
        if self.workload.slowdown is None or attempt.is_sampling is is_sampling:
            return
        attempt.is_sampling = is_sampling
        self.sampling += 1 if is_sampling else -1
        if self.sampling:
            self._pause_engine(0.0)
            self.pace = self.workload.slowdown(self.sampling)

    def _begin_turn(self, attempt: _Attempt) -> bool:
        """Begin the next turn; False if there is none."""
        turn = next(attempt.turns_s, None)
        if turn is None:
            return False
        turn_s, attempt.answer_s = turn
        ends = self._tell_engine_time() + turn_s
        heapq.heappush(self.turns, (ends, next(self.order), attempt))
        self._mark_sampling(attempt, True)
        return True

    def _end_turn(self) -> Event | None:
        """What the scheduler hears of the turn that ends; None if its group was dropped."""
        attempt = heapq.heappop(self.turns)[2]
        if self.open.get(attempt.member) is not attempt or attempt.is_struck:
            return None
        self._mark_sampling(attempt, False)
        if attempt.answer_s:
            self._come_later(attempt.answer_s, _Answered(attempt))
            return EpisodeWaits(*attempt.member, "environment")
        return self._go_on_after_answer(attempt)

    def _go_on_after_answer(self, attempt: _Attempt) -> Event | None:
        """What the scheduler hears of the next turn, or of the end; None as above."""
        if self.open.get(attempt.member) is not attempt or attempt.is_struck:
            return None
        if self._begin_turn(attempt):
            return EpisodeWaits(*attempt.member, "engine")
        return self._end_attempt(attempt)

    def _end_attempt(self, attempt: _Attempt) -> Event | None:
        """What the scheduler hears of an attempt that ends; None if its group was dropped."""
        if self.open.get(attempt.member) is not attempt:
            return None
        ticket, member = attempt.member
        self._leave_place(attempt)
        if not attempt.fails:
            self.scored[ticket][member] = attempt.version
        elif attempt.number + 1 == self.schedule.attempts:
            self.lost.append(attempt.member)
        return EpisodeEnded(ticket, member, retry=attempt.fails)

    def _stop_attempt(self, event: EpisodeEnded) -> Event | None:
        """The same; None if it has ended, or is to be stopped at another time."""
        member = event.ticket, event.member
        if self.stops.get(member) != self.now:
            return None
        self._leave_place(self.open[member])
        self.lost.append(member)
        return event

    def _leave_place(self, attempt: _Attempt) -> None:
        self._mark_sampling(attempt, False)
        del self.open[attempt.member]
        self.stops.pop(attempt.member, None)
        self.taken += self.now - attempt.began

    def _carry_out(self, action: Action) -> None:
        work = self.workload
        match action:
            case DrawGroup(ticket):
                self.scored[ticket] = {}
                self._come_later(0.0, GroupDrawn(ticket))
            case BeginEpisode():
                self._begin_attempt(action)
            case StopEpisode(ticket, member, time):
                self.stops[ticket, member] = time = max(time, self.now)
                stopped = EpisodeEnded(ticket, member, stopped=True)
                heapq.heappush(self.later, (time, next(self.order), stopped))
            case JudgeGroup(ticket):
                self._come_later(0.0, GroupJudged(ticket))
            case DropGroup(ticket):
                self._drop_group(ticket)
            case TrainBatch():
                self._train_batch(action)
            case PublishWeights():
                self.busy += work.publish_s
                self._pause_engine(work.publish_s)
                self._come_later(work.publish_s, WeightsPublished())
            case FinishStep():
                self._come_later(work.finish_s, StepFinished())
            case _:
                pass  # what stands still is found at once, without an alarm

    def _begin_attempt(self, begin: BeginEpisode) -> None:
        drawn = draw_attempt(self.workload, begin, seed=self.seed)
        attempt = _Attempt(
            member=(begin.ticket, begin.member),
            turns_s=itertools.zip_longest(drawn.turns_s, drawn.answers_s, fillvalue=0.0),
            fails=drawn.fails,
            number=begin.attempt,
            began=self.now,
            version=self.published,
        )
        self.open[attempt.member] = attempt
        self._begin_turn(attempt)

    def _drop_group(self, ticket: int) -> None:
        for member in range(self.schedule.members):
            if (ticket, member) not in self.lost:
                self.lost.append((ticket, member))
            if (attempt := self.open.get((ticket, member))) is not None:
                self._leave_place(attempt)
        del self.scored[ticket]

    def _train_batch(self, batch: TrainBatch) -> None:
        for ticket in batch.tickets:
            for member, version in sorted(self.scored.pop(ticket).items()):
                self.trained.append((ticket, member, batch.version - version))
        self.busy += self.workload.train_s
        self._pause_engine(self.workload.stands_s)
        versions, self.changes_nothing = self.schedule.updates * (not self.changes_nothing), False
        self._come_later(self.workload.train_s, BatchTrained(versions))
