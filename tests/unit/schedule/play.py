"""Plays a schedule with answers in a random order, and holds it to what must never happen."""

import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.schedule import Allowance, Schedule, Scheduler
from agentrl.schedule.events import (
    Action,
    BatchTrained,
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
    StepFinished,
    StopEpisode,
    Tick,
    TrainBatch,
    WakeAt,
    WeightsPublished,
)

MOST_EVENTS = 20_000
LONGEST = 100
"""Tokens of an episode, at most."""
OWNERS: tuple[Owner, ...] = ("engine", "environment", "verifier")


@dataclass(frozen=True, kw_only=True)
class Chances:
    """How often something odd happens."""

    retry: float = 0.0
    empty: float = 0.0
    replaced: float = 0.0
    unchanged: float = 0.0
    slow: float = 0.0
    """A ticket is slow: its answers come only if there are no others, or by a chance of 2 %."""


@dataclass
class Play:
    """One process's life; `resumed` is the next one's, from what a checkpoint would keep."""

    schedule: Schedule
    seed: int
    chances: Chances = field(default_factory=Chances)
    allowance: Allowance = field(default_factory=Allowance)
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    """How the scheduler goes on: step, version, ticket, open_tickets."""
    capacity: int | None = None
    """Of the engine's cache, for an automatic concurrency."""

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.schedule, self.allowance, **self.kept)
        self.rng = random.Random(f"{self.seed}/{self.scheduler.step}")
        self.published = self.scheduler.version
        self.pending: list[Event] = []
        self.running: dict[tuple[int, int], int] = {}
        """The version that each running attempt began under."""
        self.since: dict[tuple[int, int], float] = {}
        """When each running attempt began."""
        self.stops: dict[tuple[int, int], float] = {}
        """When running attempts are to be stopped."""
        self.ended_s: dict[int, list[float]] = {}
        """What the members of a ticket's group took that ended by themselves."""
        self.stopped = 0
        self.began: dict[int, list[int]] = {}
        """The versions of the attempts of a ticket that are left, ended or not."""
        self.attempts = Counter[tuple[int, int]]()
        self.outstanding: set[int] = set()
        self.ready: set[int] = set()
        self.training: tuple[int, ...] = ()
        self.trained: list[TrainBatch] = []
        self.dropped: list[int] = []
        self.drawn: list[int] = []
        self.ages: list[int] = []
        self.waiting: dict[int, set[int]] = {}
        """Members that have not begun, by ticket."""
        self.now = 0.0

    def run(self, until: int | None = None) -> "Play":
        """To the end, or until this step is about to be finished."""
        if self.schedule.concurrency == "auto":
            self.tell(CapacityChanged(self.capacity, longest=LONGEST, keep_s=2.0))
        self.tell(Tick())
        for _ in range(MOST_EVENTS):
            if self.scheduler.is_over:
                assert not self.running or self.schedule.staleness, "episodes behind the end"
                return self
            event = self.choose()
            if until is not None and event == StepFinished() and self.scheduler.step + 1 == until:
                return self
            self.tell(event)
        raise AssertionError(f"{MOST_EVENTS} events did not end it: {self.scheduler.waits()}")

    def resumed(self) -> "Play":
        """Another process, after the one that stopped while a step was being finished."""
        old = self.scheduler
        kept = {
            "step": old.step + 1,
            "version": old.version,
            "ticket": old.next_ticket,
            "open_tickets": old.open_tickets,
        }
        return replace(self, kept=kept)

    def choose(self) -> Event:
        assert self.pending, f"a deadlock: {self.scheduler.waits()}"
        fast = [e for e in self.pending if not self.is_slow(e)]
        event = self.rng.choice(self.pending if not fast or self.rng.random() < 0.02 else fast)
        self.pending.remove(event)
        return event

    def is_slow(self, event: Event) -> bool:
        ticket = getattr(event, "ticket", None)
        return ticket is not None and self.happens(self.chances.slow, f"slow {ticket}")

    def happens(self, chance: float, what: str) -> bool:
        return random.Random(f"{self.seed}/{what}").random() < chance

    def tell(self, event: Event) -> None:
        self.now += self.rng.expovariate(1.0)
        if isinstance(event, EpisodeEnded):
            is_late = self.now >= self.stops.get((event.ticket, event.member), math.inf)
            event = replace(event, retry=False, stopped=True) if is_late else event
        if self.running and self.rng.random() < 0.2:
            ticket, member = self.rng.choice(sorted(self.running))
            owner = self.rng.choice(OWNERS)
            waits = EpisodeWaits(ticket, member, owner, self.rng.randint(1, LONGEST))
            actions = self.scheduler.on(waits, self.now)
            assert actions == [] or self.schedule.concurrency == "auto"
            for action in actions:
                self.carry_out(action)
        self.note_event(event)
        actions = self.scheduler.on(event, self.now)
        for action in actions:
            self.carry_out(action)
        if isinstance(event, BatchTrained) and event.versions and self.schedule.partial:
            assert any(isinstance(a, PublishWeights) for a in actions), "a publish waited"
        surplus = self.allowance.surplus(self.scheduler.step + 1)
        assert len(self.outstanding) <= self.schedule.outstanding + surplus
        for (ticket, member), since in self.since.items():
            ended_s, members = self.ended_s[ticket], self.schedule.members
            patience = self.allowance.patience(ended_s, members) if ended_s else math.inf
            assert self.stops.get((ticket, member), math.inf) == since + patience
        most = self.schedule.concurrency
        assert len(self.running) <= (most if isinstance(most, int) else len(self.running))
        tickets = set(range(self.scheduler.next_ticket))
        before = tickets - set(self.drawn) - set(self.kept.get("open_tickets", ()))
        gone = {t for b in self.trained for t in b.tickets} | set(self.dropped) | before
        assert self.scheduler.open_tickets == sorted(tickets - gone)

    def note_event(self, event: Event) -> None:
        match event:
            case EpisodeEnded(ticket, member):
                began = self.running.pop((ticket, member))
                self.stops.pop((ticket, member), None)
                seconds = self.now - self.since.pop((ticket, member))
                self.stopped += event.stopped
                if not event.retry or self.attempts[ticket, member] == self.schedule.attempts:
                    self.began[ticket].append(began)
                    self.ended_s[ticket] += [] if event.stopped else [seconds]
            case GroupJudged(ticket, True):
                self.began[ticket] = []
                self.waiting[ticket] = set(range(self.schedule.members))
                self.ended_s[ticket] = []
                for member in range(self.schedule.members):
                    del self.attempts[ticket, member]
            case GroupDrawn(ticket, False):
                self.waiting[ticket] = set(range(self.schedule.members))
            case WeightsPublished():
                self.published = self.scheduler.version
            case StepFinished():
                self.outstanding -= set(self.training)
            case _:
                pass

    def carry_out(self, action: Action) -> None:
        match action:
            case DrawGroup(ticket):
                assert ticket not in self.drawn, "drawn twice"
                self.drawn.append(ticket)
                self.outstanding.add(ticket)
                self.began[ticket], self.ended_s[ticket] = [], []
                empty = self.happens(self.chances.empty, f"empty {ticket}")
                self.pending.append(GroupDrawn(ticket, empty))
            case BeginEpisode(ticket, member, attempt):
                assert (ticket, member) not in self.running
                assert attempt == self.attempts[ticket, member] < self.schedule.attempts
                self.attempts[ticket, member] += 1
                self.begin_in_turn(ticket, member, attempt)
                self.running[ticket, member] = self.published
                self.since[ticket, member] = self.now
                retry = self.rng.random() < self.chances.retry
                self.pending.append(EpisodeEnded(ticket, member, retry))
            case StopEpisode(ticket, member, time):
                assert (ticket, member) in self.running
                self.stops[ticket, member] = time
            case JudgeGroup(ticket):
                assert not any(t == ticket for t, _ in self.running)
                assert len(self.began[ticket]) == self.schedule.members
                replaced = self.rng.random() < self.chances.replaced
                self.pending.append(GroupJudged(ticket, replaced))
            case DropGroup(ticket):
                self.drop(ticket)
            case _:
                self.carry_out_for_trainer(action)

    def drop(self, ticket: int) -> None:
        assert self.schedule.late == "drop"
        self.dropped.append(ticket)
        self.waiting.pop(ticket, None)
        self.outstanding.remove(ticket)
        for member in range(self.schedule.members):
            self.running.pop((ticket, member), None)
            self.since.pop((ticket, member), None)
            self.stops.pop((ticket, member), None)
        self.pending = [e for e in self.pending if getattr(e, "ticket", None) != ticket]

    def carry_out_for_trainer(self, action: Action) -> None:
        match action:
            case TrainBatch():
                self.train(action)
            case PublishWeights(version):
                assert version == self.scheduler.version
                assert self.schedule.partial or not self.running, "an episode crossed an update"
                self.pending.append(WeightsPublished())
            case FinishStep(step):
                assert step == self.scheduler.step + 1
                if self.schedule.staleness:
                    self.outstanding -= set(self.training)
                self.pending.append(StepFinished())
            case _:
                assert isinstance(action, WakeAt | Stalled)

    def begin_in_turn(self, ticket: int, member: int, attempt: int) -> None:
        """For a cache a stranger begins only if no group that has begun has members left."""
        if attempt or self.schedule.concurrency != "auto":
            return
        begun = {t for t, left in self.waiting.items() if 0 < len(left) < self.schedule.members}
        assert ticket in begun or not begun, f"{ticket} before the rest of {begun}"
        self.waiting[ticket].remove(member)

    def train(self, batch: TrainBatch) -> None:
        assert batch.step == self.scheduler.step + 1
        assert len(batch.tickets) == self.schedule.groups_per_step
        assert not {t for b in self.trained for t in b.tickets} & set(batch.tickets)
        assert set(batch.tickets) <= self.outstanding
        assert batch.oldest == batch.version - self.schedule.staleness
        ages = [batch.version - began for t in batch.tickets for began in self.began[t]]
        if self.schedule.late != "mask":
            assert max(ages, default=0) <= self.schedule.staleness, f"{batch} is of ages {ages}"
        self.ages += ages
        self.trained.append(batch)
        self.training = batch.tickets
        unchanged = self.rng.random() < self.chances.unchanged
        self.pending.append(BatchTrained(0 if unchanged else self.schedule.updates))
