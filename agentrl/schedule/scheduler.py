"""`Scheduler`: when groups are drawn, episodes begun, batches trained and weights published.

    DrawGroup ─▶ BeginEpisode ─▶ JudgeGroup ─▶ TrainBatch ─▶ PublishWeights ─▶ FinishStep
        ▲        (a place each)   (another?)    (oldest first)                      │
        └────────── a place among the groups that may be outstanding ◀──────────────┘

A state machine without clock, task or thread: whoever drives it carries out the actions in their
order and says what came of them. Synchronous training is staleness 0: the groups of one step are
outstanding, and their places come free when the step is finished. With a staleness of k steps there
are those of k + 1, and places come free when weights are published.

The bound holds for each token, time in a queue included: groups are trained in the order of their
oldest versions, and a batch waits for old groups as long as more of them would be left than the
batches after it can take in time. A group that is drawn later begins later, so this stays possible.

An `Allowance` has more groups begun than are needed, where late ones are dropped, and members that
take much longer than the others of their group stopped.
"""

import heapq
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Literal

from agentrl.schedule.allowance import Allowance
from agentrl.schedule.cache import CachePlan
from agentrl.schedule.config import Schedule
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

_Phase = Literal["collecting", "training", "trained", "publishing", "finishing"]
_OF_TRAINER: Final[dict[_Phase, str]] = {
    "training": "the update",
    "trained": "episodes that no update may cross",
    "publishing": "the engine to take weights",
    "finishing": "evaluation, metrics and checkpoint",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody who waits, for whom, and since when on the scheduler's clock."""

    who: str
    owner: str
    since: float


@dataclass(slots=True)
class _Group:
    left: int
    """Members that have not ended."""
    oldest: int | None = None
    """The version that its first episode began under; None before that."""
    sampled: int | None = None
    """The oldest version of what was sampled before a resume."""
    is_ready: bool = False
    ended_s: list[float] = field(default_factory=list[float])
    """What those members took that ended by themselves."""
    patience: float = inf
    """Seconds that a member may take."""


@dataclass(slots=True)
class _Running:
    attempt: int
    began: float
    owner: Owner
    since: float


class Scheduler:
    """Says what is to be done next; `on` takes what happened."""

    def __init__(
        self,
        schedule: Schedule,
        allowance: Allowance | None = None,
        *,
        step: int = 0,
        version: int = 0,
        ticket: int | None = None,
        open_tickets: Sequence[int] = (),
    ) -> None:
        """Go on behind a step, when the weights were of this version; by default without allowance.

        `ticket` is the next one that was never drawn, by default the first of the next step;
        `open_tickets` are those before it that nobody has trained on. They are drawn again.
        """
        self.schedule = schedule
        self.step = step
        """The last one that is finished."""
        self.version = version
        """Of the trainer's weights."""
        self.next_ticket = schedule.tickets_until(step) if ticket is None else ticket
        self.peak = 0
        """Most episodes that were played at once."""
        self._published = version
        self._allowance = allowance or Allowance()
        self._again = deque(sorted(open_tickets))
        self._groups: dict[int, _Group] = {}
        self._ready: list[tuple[int, int]] = []
        """(oldest version, ticket), in order."""
        self._unready = Counter[int]()
        """How many groups that are not ready began under a version."""
        self._waiting: list[tuple[int, int, int]] = []
        """A heap of (ticket, member, attempt)."""
        self._running: dict[tuple[int, int], _Running] = {}
        self._cache = CachePlan() if schedule.concurrency == "auto" else None
        self._batch: tuple[int, ...] = ()
        self._phase: _Phase = "collecting"
        self._since = self._heard = 0.0
        self._wakes = False
        self._wake_at = inf
        self._now = 0.0
        self._actions: list[Action] = []
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            Tick: self._on_tick,
            GroupDrawn: self._on_group_drawn,
            EpisodeWaits: self._on_episode_waits,
            CapacityChanged: self._on_capacity_changed,
            EpisodeEnded: self._on_episode_ended,
            GroupJudged: self._on_group_judged,
            BatchTrained: self._on_batch_trained,
            WeightsPublished: self._on_weights_published,
            StepFinished: self._on_step_finished,
        }

    @property
    def open_tickets(self) -> list[int]:
        """Tickets below `next_ticket` that nobody has trained on: what a checkpoint keeps."""
        return sorted([*self._again, *(t for t in self._groups if t not in self._batch)])

    @property
    def is_over(self) -> bool:
        """Nothing is left to do."""
        if not self.schedule.trains:
            return len(self._ready) >= self.schedule.groups_per_step
        return self.step >= self.schedule.steps

    def on(self, event: Event, now: float) -> list[Action]:
        """What is to be done, in this order. Raises ValueError for what cannot have happened."""
        self._now, self._actions = now, []
        self._handlers[type(event)](event)
        if type(event) is not Tick:
            self._heard = now
        if type(event) is not EpisodeWaits:
            self._advance()
        return self._actions

    def waits(self) -> list[Wait]:
        """Who waits for whom, the longest first."""
        found = [
            Wait(f"episode {ticket}.{member}", running.owner, running.since)
            for (ticket, member), running in self._running.items()
        ]
        if num_waiting := len(self._waiting):
            who = f"each of {num_waiting} episodes" if num_waiting > 1 else "an episode"
            found.append(Wait(who, "place", self._heard))
        if (owner := _OF_TRAINER.get(self._phase)) is not None:
            found.append(Wait("the trainer", owner, self._since))
        elif self._groups:
            missing = self.schedule.groups_per_step - len(self._ready)
            due = self._count_groups_due()
            num, kind = (max(missing, due), "more") if missing > 0 else (due, "old")
            owner = f"{num} {kind} group{'s' * (num != 1)}"
            found.append(Wait("the trainer", owner, self._since))
        return sorted(found, key=lambda wait: wait.since)

    def _count_groups_due(self) -> int:
        """How many groups that are not ready must be, for no later batch to be too late for one."""
        due = begun = 0
        num = self.schedule.groups_per_step
        for version in sorted(self._unready):
            begun += self._unready[version]
            ready = bisect_right(self._ready, (version, self.next_ticket)) - num
            later = (version + self.schedule.staleness - self.version) // self.schedule.updates
            due = max(due, begun + max(0, ready) - later * num)
        return due

    def _advance(self) -> None:
        """Do what has become possible."""
        if self.is_over:
            return
        if self._phase == "trained" and (self.schedule.partial or not self._running):
            self._enter("publishing")
            self._actions.append(PublishWeights(self.version))
        if self.schedule.staleness or self._phase == "collecting":
            self._draw_groups()
            self._begin_episodes()
        if self._phase == "collecting" and self.schedule.trains:
            self._train_if_batch_is_there()

    def _draw_groups(self) -> None:
        batches = self.schedule.steps - self.step - (self._phase != "collecting")
        if not batches:
            return
        surplus = self._allowance.surplus(self.schedule.steps - batches + 1)
        needed = len(self._batch) + batches * self.schedule.groups_per_step
        for _ in range(min(self.schedule.outstanding, needed) + surplus - len(self._groups)):
            if self._again:
                ticket = self._again.popleft()
            else:
                ticket, self.next_ticket = self.next_ticket, self.next_ticket + 1
            self._groups[ticket] = _Group(left=0)
            self._actions.append(DrawGroup(ticket))

    def _begin_episodes(self) -> None:
        if not self.schedule.partial and self._phase in ("trained", "publishing"):
            return
        while self._waiting and (episode := self._choose_who_begins()) is not None:
            if episode == self._waiting[0]:
                heapq.heappop(self._waiting)
            else:
                self._waiting.remove(episode)
                heapq.heapify(self._waiting)
            self._begin(*episode)

    def _choose_who_begins(self) -> tuple[int, int, int] | None:
        """One that waits for a place; None if there is no place."""
        first, most = self._waiting[0], self.schedule.concurrency
        if isinstance(most, int) and len(self._running) >= most:
            return None
        if self._cache is None:
            return first
        if self._groups[first[0]].oldest is None:
            # Members of a group that has begun come first: their prompt is in the cache.
            first = min(self._waiting, key=lambda one: (self._groups[one[0]].oldest is None, one))
        if self._cache.has_room(first[0], self._now):
            return first
        self._wake_by(self._cache.next_release(self._now))
        return None

    def _begin(self, ticket: int, member: int, attempt: int) -> None:
        group = self._groups[ticket]
        if group.oldest is None:
            sampled = self._published if group.sampled is None else group.sampled
            group.oldest = min(self._published, sampled)
            self._unready[group.oldest] += 1
        self._running[ticket, member] = _Running(attempt, self._now, "environment", self._now)
        if self._cache is not None:
            self._cache.begin(ticket, member)
        self.peak = max(self.peak, len(self._running))
        self._actions.append(BeginEpisode(ticket, member, attempt))
        if group.patience < inf:
            self._actions.append(StopEpisode(ticket, member, self._now + group.patience))

    def _train_if_batch_is_there(self) -> None:
        num = self.schedule.groups_per_step
        if len(self._ready) < num:
            return
        if self.schedule.late == "wait" and self._count_groups_due():
            return
        self._batch = tuple(ticket for _, ticket in self._ready[:num])
        del self._ready[:num]
        if self.schedule.late == "drop" and not self.schedule.staleness:
            # Whatever has begun will be too late, and no episode runs beside an update.
            self._drop_groups_older_than(self.version + 1)
        self._enter("training")
        oldest = self.version - self.schedule.staleness
        self._actions.append(TrainBatch(self.step + 1, self._batch, self.version, oldest))

    def _enter(self, phase: _Phase) -> None:
        self._phase, self._since = phase, self._now

    def _leave(self, phase: _Phase, event: Event) -> None:
        if self._phase != phase:
            raise ValueError(f"got {event}, but the trainer is {self._phase}, expected {phase}")

    def _group_of(self, event: GroupDrawn | EpisodeEnded | GroupJudged) -> _Group:
        group = self._groups.get(event.ticket)
        if group is None or group.is_ready:
            raise ValueError(f"got {event}, expected an open group")
        return group

    def _on_tick(self, _: Tick) -> None:
        if not self._wakes:  # the first event of all: the clock need not begin at 0
            self._heard = self._since = self._now
        silent_until = self._heard + self.schedule.stall_s
        if self._wakes and self._groups and self._now >= silent_until:
            self._actions.append(Stalled(self._heard))
            silent_until = self._now + self.schedule.stall_s
        self._wakes, self._wake_at = True, inf
        self._wake_by(max(silent_until, self._now))

    def _wake_by(self, time: float) -> None:
        if time < self._wake_at:
            self._wake_at = time
            self._actions.append(WakeAt(time))

    def _on_group_drawn(self, event: GroupDrawn) -> None:
        group = self._group_of(event)
        if event.is_empty:
            self._keep(event.ticket, group)
            return
        group.left, group.sampled = self.schedule.members, event.oldest
        group.ended_s, group.patience = [], inf
        for member in range(group.left):
            heapq.heappush(self._waiting, (event.ticket, member, 0))

    def _on_episode_waits(self, event: EpisodeWaits) -> None:
        running = self._running.get((event.ticket, event.member))
        if running is None:  # it was dropped
            return
        running.owner, running.since = event.owner, self._now
        if self._cache is None:
            return
        if self._cache.note(event.ticket, event.member, event.tokens, event.owner, self._now):
            self._begin_episodes()
        if event.owner == "environment" and self._waiting:
            self._wake_by(self._now + self._cache.keep_s)

    def _on_capacity_changed(self, event: CapacityChanged) -> None:
        if self._cache is not None:
            self._cache.limit_tokens(event.tokens, event.longest, event.keep_s)

    def _on_episode_ended(self, event: EpisodeEnded) -> None:
        running = self._running.pop((event.ticket, event.member), None)
        if running is None:
            raise ValueError(f"got {event}, expected a running episode")
        if self._cache is not None:
            self._cache.end(event.ticket, event.member, counts=not (event.retry or event.stopped))
        group = self._group_of(event)
        if event.retry and running.attempt + 1 < self.schedule.attempts:
            self._begin(event.ticket, event.member, running.attempt + 1)
            return
        group.left -= 1
        if not event.stopped:
            group.ended_s.append(self._now - running.began)
        if not group.left:
            self._actions.append(JudgeGroup(event.ticket))
        else:
            self._set_patience(event.ticket, group)

    def _set_patience(self, ticket: int, group: _Group) -> None:
        """Say until when the members that are left are waited for, where that has changed."""
        before = group.patience
        group.patience = self._allowance.patience(group.ended_s, self.schedule.members)
        for member in range(self.schedule.members) if group.patience != before else ():
            if (running := self._running.get((ticket, member))) is not None:
                time = running.began + group.patience
                self._actions.append(StopEpisode(ticket, member, time))

    def _on_group_judged(self, event: GroupJudged) -> None:
        group = self._group_of(event)
        if event.replaced:
            self._forget_oldest(group)
            self._forget_prompt(event.ticket)
            group.oldest = None
            self._on_group_drawn(GroupDrawn(event.ticket))
        else:
            self._keep(event.ticket, group)

    def _keep(self, ticket: int, group: _Group) -> None:
        self._forget_oldest(group)
        self._forget_prompt(ticket)
        group.oldest = self._published if group.oldest is None else group.oldest
        group.is_ready = True
        insort(self._ready, (group.oldest, ticket))

    def _forget_oldest(self, group: _Group) -> None:
        if group.oldest is not None:
            self._unready[group.oldest] -= 1
            if not self._unready[group.oldest]:
                del self._unready[group.oldest]

    def _forget_prompt(self, ticket: int) -> None:
        if self._cache is not None:
            self._cache.forget_group(ticket)

    def _on_batch_trained(self, event: BatchTrained) -> None:
        self._leave("training", event)
        self.version += event.versions
        self._enter("trained")
        if self.schedule.late == "drop":
            self._drop_groups_older_than(self.version - self.schedule.staleness)
        if not event.versions:
            self._go_on_to_finish()

    def _on_weights_published(self, event: WeightsPublished) -> None:
        self._leave("publishing", event)
        self._published = self.version
        self._go_on_to_finish()

    def _go_on_to_finish(self) -> None:
        self._enter("finishing")
        if self.schedule.staleness:
            self._free_places_of_batch()
        self._actions.append(FinishStep(self.step + 1))

    def _on_step_finished(self, event: StepFinished) -> None:
        self._leave("finishing", event)
        self.step += 1
        self._free_places_of_batch()
        self._enter("collecting")

    def _free_places_of_batch(self) -> None:
        for ticket in self._batch:
            del self._groups[ticket]
        self._batch = ()

    def _drop_groups_older_than(self, oldest: int) -> None:
        """Give up what even the next batch would be too late for."""
        for ticket, group in list(self._groups.items()):
            if group.oldest is None or group.oldest >= oldest or ticket in self._batch:
                continue
            if group.is_ready:
                self._ready.remove((group.oldest, ticket))
            else:
                self._forget_oldest(group)
            self._waiting = [episode for episode in self._waiting if episode[0] != ticket]
            heapq.heapify(self._waiting)
            for member in range(self.schedule.members):
                self._running.pop((ticket, member), None)
            self._forget_prompt(ticket)
            del self._groups[ticket]
            self._actions.append(DropGroup(ticket))
