"""A `Scheduler` under simulated time: what a schedule would give, in milliseconds.

    workload = Workload(
        num_turns=lambda rng: rng.randint(1, 8), turn_s=lognormal(10.0, 1.0), train_s=30.0
    )
    schedule = Schedule(groups_per_step=8, members=8, steps=100, staleness=1)
    print(simulate(schedule, workload).seconds)

The draws of an attempt depend on the seed, its ticket, member and number alone, so that two
schedules are compared on the same episodes.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

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
    Tick,
    TrainBatch,
    WeightsPublished,
)
from agentrl.schedule.scheduler import Scheduler


def lognormal(mean: float, sigma: float) -> Callable[[Random], float]:
    """Draws with this mean; `sigma` is that of their natural logarithm."""
    mu = math.log(mean) - sigma**2 / 2
    return lambda rng: rng.lognormvariate(mu, sigma)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What episodes and updates take; all times in seconds."""

    num_turns: Callable[[Random], int]
    turn_s: Callable[[Random], float]
    """Of one turn, the environment's answer included."""
    train_s: float = 0.0
    publish_s: float = 0.0
    """The engine stands still so long."""
    fails: float = 0.0
    """The share of attempts that end without a score and may be tried again."""
    hangs: Sequence[tuple[float, float]] = ()
    """(when, how long) the engine stands still."""


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
    """(ticket, member) without a score after all attempts, or of a dropped group."""
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


def simulate(schedule: Schedule, workload: Workload, *, seed: int = 0) -> Simulated:
    """Play a whole run. Raises ValueError if the schedule comes to a stand."""
    return _VirtualRun(schedule, workload, seed).play()


@dataclass(slots=True)
class _Attempt:
    member: tuple[int, int]
    rng: Random
    turns: int
    fails: bool
    number: int
    began: float
    version: int


@dataclass(slots=True)
class _VirtualRun:
    schedule: Schedule
    workload: Workload
    seed: int
    now: float = 0.0
    pause: float = 0.0
    """Real time minus the engine's, which stands still while it takes weights or hangs."""
    stood: float = 0.0
    """The engine's time at its last pause."""
    busy: float = 0.0
    taken: float = 0.0
    """Seconds of all places that episodes took."""
    events: int = 0
    published: int = 0
    order: Iterator[int] = field(default_factory=itertools.count)
    """Of what happens at the same time, the first that was begun comes first."""
    later: list[tuple[float, int, Event]] = field(default_factory=list[tuple[float, int, Event]])
    """What comes when, by the real clock."""
    turns: list[tuple[float, int, _Attempt]] = field(
        default_factory=list[tuple[float, int, _Attempt]]
    )
    """When turns end, by the engine's clock."""
    open: dict[tuple[int, int], _Attempt] = field(default_factory=dict[tuple[int, int], _Attempt])
    scored: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])
    """By ticket the members with a score and the version that each began under."""
    staleness: list[int] = field(default_factory=list[int])
    trained: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def play(self) -> Simulated:
        scheduler = Scheduler(self.schedule)
        hangs = sorted(self.workload.hangs)
        self._come_later(0.0, Tick())
        while not scheduler.is_over:
            engine = self.turns[0][0] + self.pause if self.turns else math.inf
            trainer = self.later[0][0] if self.later else math.inf
            if math.isinf(min(engine, trainer)):
                raise ValueError(f"the schedule came to a stand: {scheduler.waits()}")
            if hangs and hangs[0][0] <= min(engine, trainer):
                self.now, seconds = hangs.pop(0)
                self._pause_engine(seconds)
                continue
            self.now = min(engine, trainer)
            event = self._end_turn() if engine < trainer else heapq.heappop(self.later)[2]
            if event is None:
                continue
            if isinstance(event, WeightsPublished):
                self.published = scheduler.version
            self.events += 1
            for action in scheduler.on(event, self.now):
                self._carry_out(action)
        taken = self.taken + sum(self.now - attempt.began for attempt in self.open.values())
        places = scheduler.peak
        return Simulated(
            seconds=self.now,
            steps=scheduler.step,
            trainer_busy=self.busy / self.now if self.now else 0.0,
            engine_busy=taken / (self.now * places) if self.now and places else 0.0,
            staleness=tuple(sorted(self.staleness)),
            trained=tuple(self.trained),
            lost=tuple(self.lost),
            events=self.events,
        )

    def _come_later(self, seconds: float, event: Event) -> None:
        heapq.heappush(self.later, (self.now + seconds, next(self.order), event))

    def _pause_engine(self, seconds: float) -> None:
        self.stood = max(self.stood, self.now - self.pause)
        self.pause += seconds

    def _begin_turn(self, attempt: _Attempt) -> None:
        attempt.turns -= 1
        begins = max(self.now - self.pause, self.stood)
        ends = begins + self.workload.turn_s(attempt.rng)
        heapq.heappush(self.turns, (ends, next(self.order), attempt))

    def _end_turn(self) -> Event | None:
        """What the scheduler hears of the turn that ends; None if its group was dropped."""
        attempt = heapq.heappop(self.turns)[2]
        if self.open.get(attempt.member) is not attempt:
            return None
        ticket, member = attempt.member
        if attempt.turns > 0:
            self._begin_turn(attempt)
            return EpisodeWaits(ticket, member, "engine")
        self._leave_place(attempt)
        if not attempt.fails:
            self.scored[ticket][member] = attempt.version
        elif attempt.number + 1 == self.schedule.attempts:
            self.lost.append(attempt.member)
        return EpisodeEnded(ticket, member, retry=attempt.fails)

    def _leave_place(self, attempt: _Attempt) -> None:
        del self.open[attempt.member]
        self.taken += self.now - attempt.began

    def _carry_out(self, action: Action) -> None:
        work = self.workload
        match action:
            case DrawGroup(ticket):
                self.scored[ticket] = {}
                self._come_later(0.0, GroupDrawn(ticket))
            case BeginEpisode():
                self._begin_attempt(action)
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
                self._come_later(0.0, StepFinished())
            case _:
                pass  # what stands still is found at once, without an alarm

    def _begin_attempt(self, begin: BeginEpisode) -> None:
        member = begin.ticket, begin.member
        rng = Random(f"{self.seed}/{begin.ticket}/{begin.member}/{begin.attempt}")
        turns, fails = self.workload.num_turns(rng), rng.random() < self.workload.fails
        attempt = _Attempt(member, rng, turns, fails, begin.attempt, self.now, self.published)
        self.open[member] = attempt
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
                self.trained.append((ticket, member))
                self.staleness.append(batch.version - version)
        self.busy += self.workload.train_s
        self._come_later(self.workload.train_s, BatchTrained(self.schedule.updates))
