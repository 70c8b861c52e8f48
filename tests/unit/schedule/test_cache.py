"""Who fits into a cache, held against the sum of all that runs at each end of an episode."""

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.schedule import Schedule, Scheduler
from agentrl.schedule.cache import KEEP_S, MOST_WITHOUT_BOUND, CachePlan
from agentrl.schedule.events import (
    Action,
    BeginEpisode,
    CapacityChanged,
    EpisodeEnded,
    EpisodeWaits,
    GroupDrawn,
    Owner,
    Tick,
    WakeAt,
)

LONGEST, PROMPT = 50, 10
ROUNDING = 1e-6
OWNERS: list[Owner] = ["engine", "environment", "verifier"]


@dataclass
class Model:
    """What an episode holds, as the test knows it."""

    ticket: int
    forecast: float
    tokens: int = 0
    idle_since: float = inf

    def holds(self, now: float) -> bool:
        return now < self.idle_since + KEEP_S


def grow_to_peak(models: list[Model], prompts: dict[int, int]) -> float:
    """The most tokens at once, each group's prompt counted once: it is when one of them ends."""
    sizes = [model.tokens or prompts.get(model.ticket, 0) for model in models]
    peak = 0.0
    for end in [model.forecast - size for model, size in zip(models, sizes, strict=True)]:
        alive = [
            (model, size + end)
            for model, size in zip(models, sizes, strict=True)
            if size + end <= model.forecast + ROUNDING
        ]
        total = sum(size for _, size in alive)
        for ticket, prompt in prompts.items():
            total -= prompt * max(0, sum(model.ticket == ticket for model, _ in alive) - 1)
        peak = max(peak, total)
    return peak


@dataclass
class Cache:
    """A plan beside the test's own books."""

    capacity: int
    plan: CachePlan = field(default_factory=CachePlan)
    open: dict[tuple[int, int], Model] = field(default_factory=dict[tuple[int, int], Model])
    prompts: dict[int, int] = field(default_factory=dict[int, int])
    now: float = 0.0

    def __post_init__(self) -> None:
        self.plan.limit_tokens(self.capacity, LONGEST)

    def begin(self, ticket: int, member: int) -> None:
        begins = Model(ticket, self.plan.forecast(self.prompts.get(ticket, 0)))
        held = [model for model in self.open.values() if model.holds(self.now)]
        peak = grow_to_peak([*held, begins], self.prompts)
        if self.plan.has_room(ticket, self.now):
            assert not held or peak <= self.capacity + ROUNDING, "above the capacity"
            self.plan.begin(ticket, member)
            self.open[ticket, member] = begins
        else:
            assert held, "one alone was refused"
            assert peak > self.capacity - ROUNDING, "refused with room left"

    def note(self, ticket: int, member: int, more: int, owner: Owner) -> None:
        model = self.open[ticket, member]
        model.tokens = min(LONGEST, (model.tokens or PROMPT) + more)
        model.forecast = self.plan.forecast(model.tokens)
        assert model.tokens <= model.forecast
        self.prompts.setdefault(ticket, model.tokens)
        model.idle_since = {"engine": inf, "environment": self.now, "verifier": -inf}[owner]
        self.plan.note(ticket, member, model.tokens, owner, self.now)


@given(st.integers(1, 300), st.data())
def test_forecasts_stay_below_the_capacity_and_nobody_is_refused_without_need(
    capacity: int, data: st.DataObject
) -> None:
    cache = Cache(capacity)
    for _ in range(data.draw(st.integers(1, 25))):
        cache.now += data.draw(st.sampled_from([0.0, 1.0, KEEP_S]))
        key = (data.draw(st.integers(0, 2)), data.draw(st.integers(0, 5)))
        if key not in cache.open:
            cache.begin(*key)
        elif data.draw(st.integers(0, 3)):
            cache.note(*key, data.draw(st.integers(0, 12)), data.draw(st.sampled_from(OWNERS)))
        else:
            cache.plan.end(*key, counts=data.draw(st.booleans()))
            del cache.open[key]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=400), st.integers(0, 1000))
def test_a_forecast_is_the_mean_of_the_last_that_grew_larger_and_of_one_half_way_to_the_most(
    sizes: list[int], now: int
) -> None:
    plan = CachePlan()
    plan.limit_tokens(10_000, longest=1000)
    for member, size in enumerate(sizes):
        plan.begin(0, member)
        plan.note(0, member, size, "engine", 0.0)
        plan.end(0, member, counts=True)
    larger = [*(size for size in sizes[-256:] if size > now), (now + 1000) / 2]
    assert plan.forecast(now) == sum(larger) / len(larger)


def test_without_a_bound_all_begin_up_to_a_number() -> None:
    plan = CachePlan()
    for member in range(MOST_WITHOUT_BOUND):
        assert plan.has_room(0, 0.0)
        plan.begin(0, member)
    assert not plan.has_room(0, 0.0)


def automatic(capacity: int) -> tuple[Scheduler, list[Action]]:
    """Two groups of two; an episode is taken to grow to 25 tokens, until something is known."""
    schedule = Schedule(groups_per_step=2, members=2, steps=1, concurrency="auto")
    scheduler = Scheduler(schedule)
    scheduler.on(CapacityChanged(capacity, LONGEST, KEEP_S), 0.0)
    scheduler.on(Tick(), 0.0)
    actions = scheduler.on(GroupDrawn(1), 0.0)
    return scheduler, [*actions, *scheduler.on(GroupDrawn(0), 0.0)]


def test_members_of_a_group_that_has_begun_come_before_an_earlier_group() -> None:
    scheduler, actions = automatic(45)
    assert actions == [BeginEpisode(1, 0, 0)]
    assert scheduler.on(EpisodeEnded(1, 0), 1.0) == [BeginEpisode(1, 1, 0)]


def test_a_shared_prompt_makes_room_at_once() -> None:
    scheduler, actions = automatic(52)
    assert actions == [BeginEpisode(1, 0, 0), BeginEpisode(1, 1, 0)]
    assert scheduler.on(EpisodeWaits(1, 0, "engine", 45), 1.0) == [BeginEpisode(0, 0, 0)]
    assert scheduler.on(EpisodeWaits(1, 1, "engine", 45), 1.0) == []


@pytest.mark.parametrize("capacity", [45, 20])
def test_a_long_tool_call_gives_up_its_part_and_a_verifier_needs_none(capacity: int) -> None:
    """Also where an episode alone is more than the cache holds."""
    scheduler, _ = automatic(capacity)
    scheduler.on(EpisodeWaits(1, 0, "engine", 10), 1.0)
    assert scheduler.on(EpisodeWaits(1, 0, "environment", 20), 2.0) == [WakeAt(2.0 + KEEP_S)]
    assert BeginEpisode(1, 1, 0) in scheduler.on(Tick(), 2.0 + KEEP_S)
    assert scheduler.on(EpisodeWaits(1, 1, "verifier", 20), 13.0) == [BeginEpisode(0, 0, 0)]
    assert scheduler.on(EpisodeWaits(1, 0, "engine", 20), 14.0) == [], "counts again"


def test_a_server_that_is_lost_takes_its_room_with_it() -> None:
    scheduler, actions = automatic(60)
    assert len([a for a in actions if isinstance(a, BeginEpisode)]) == 2
    scheduler.on(CapacityChanged(30, LONGEST, KEEP_S), 1.0)
    assert scheduler.on(EpisodeEnded(1, 0), 2.0) == []
    assert BeginEpisode(0, 0, 0) in scheduler.on(CapacityChanged(60, LONGEST, KEEP_S), 3.0)


@pytest.mark.parametrize(("capacity", "fits"), [(50, True), (49, False)])
def test_who_begins_grows_from_the_prompt_of_its_group(capacity: int, fits: bool) -> None:
    """Also where those that have ended were smaller than that."""
    plan = CachePlan()
    plan.limit_tokens(capacity, LONGEST)
    plan.begin(0, 0)
    plan.note(0, 0, 5, "engine", 0.0)
    plan.end(0, 0, counts=True)
    plan.begin(1, 0)
    plan.note(1, 0, 40, "engine", 1.0)
    assert plan.forecast(40) == 45
    assert plan.has_room(1, 1.0) == fits
