"""Whatever the order of what happens: see `play.py` for what is held after each event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.schedule import Allowance, Concurrency, Late, Schedule
from tests.unit.schedule.play import Chances, Play

CHANCE = st.sampled_from([0.0, 0.1, 0.4])


AUTO: Concurrency = "auto"
CONCURRENCY: st.SearchStrategy[Concurrency | None] = st.sampled_from([None, AUTO, *range(1, 10)])


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    updates = draw(st.integers(1, 3))
    return Schedule(
        groups_per_step=draw(st.integers(1, 4)),
        members=draw(st.integers(1, 3)),
        steps=draw(st.integers(1, 12)),
        attempts=draw(st.integers(1, 3)),
        concurrency=draw(CONCURRENCY),
        staleness=draw(st.just(0) | st.integers(updates, 4 * updates + 2)),
        updates=updates,
        late=draw(st.sampled_from(["wait", "wait", "mask", "drop"])),
        partial=draw(st.booleans()),
    )


chances = st.builds(
    Chances, retry=CHANCE, empty=CHANCE, replaced=CHANCE, unchanged=CHANCE, slow=CHANCE
)
capacities = st.none() | st.integers(0, 2000)


@st.composite
def allowances(draw: st.DrawFn, schedule: Schedule) -> Allowance:
    """More groups than are needed only where those that are late are dropped."""
    surplus = draw(st.integers(0, 5)) if schedule.late == "drop" else 0
    return Allowance(surplus=surplus, stragglers=draw(st.sampled_from([0.0, 0.34, 0.67])))


cases = schedules().flatmap(lambda one: st.tuples(st.just(one), allowances(one)))


def trained_tickets(*plays: Play) -> list[int]:
    return [ticket for play in plays for batch in play.trained for ticket in batch.tickets]


@given(cases, chances, st.integers(0, 2**32), capacities)
def test_every_ticket_is_trained_once_and_it_ends(
    case: tuple[Schedule, Allowance], chances: Chances, seed: int, capacity: int | None
) -> None:
    schedule, allowance = case
    play = Play(schedule, seed, chances, allowance, capacity=capacity).run()
    assert [batch.step for batch in play.trained] == list(range(1, schedule.steps + 1))
    trained = trained_tickets(play)
    assert sorted(trained + play.dropped + play.scheduler.open_tickets) == sorted(play.drawn)
    assert len(set(trained)) == schedule.steps * schedule.groups_per_step
    if schedule.late != "drop":
        assert sorted(trained) == list(range(schedule.tickets_until(schedule.steps)))
    if schedule.staleness == allowance.surplus(1) == 0:
        assert trained == sorted(trained), "not in the order of the steps"


@given(cases, chances, st.integers(0, 2**32), st.integers(1, 12))
def test_a_resumed_run_trains_every_ticket_once(
    case: tuple[Schedule, Allowance], chances: Chances, seed: int, until: int
) -> None:
    schedule, allowance = case
    first = Play(schedule, seed, chances, allowance).run(until)
    if first.scheduler.is_over or until > schedule.steps:
        return
    second = first.resumed().run()
    assert [b.step for b in (*first.trained, *second.trained)] == [*range(1, schedule.steps + 1)]
    trained = trained_tickets(first, second)
    assert len(set(trained)) == len(trained)
    assert not set(trained) & {*first.dropped, *second.dropped}
    if schedule.late != "drop":
        assert sorted(trained) == list(range(schedule.tickets_until(schedule.steps)))


@pytest.mark.parametrize("late", ["wait", "mask", "drop"])
def test_slow_groups_tell_the_three_ways_apart(late: Late) -> None:
    """The control: without waiting the bound is passed, or groups are given up."""
    plays = [
        Play(
            Schedule(groups_per_step=2, members=2, steps=12, staleness=2, late=late),
            seed,
            Chances(slow=0.2),
        ).run()
        for seed in range(20)
    ]
    oldest = max(age for play in plays for age in play.ages)
    assert oldest > 2 if late == "mask" else oldest <= 2
    assert any(play.dropped for play in plays) == (late == "drop")


def test_what_is_begun_beyond_need_and_left_behind_is_given_up() -> None:
    """The control: without an allowance nothing of a synchronous run is."""
    schedule = Schedule(groups_per_step=2, members=4, steps=12, late="drop", concurrency=12)
    more, impatient, plain = (
        Play(schedule, 0, Chances(slow=0.2), allowance).run()
        for allowance in (Allowance(surplus=2), Allowance(stragglers=0.25), Allowance())
    )
    assert len(more.dropped) > 6
    assert more.stopped == 0
    assert 0 < impatient.stopped <= len(impatient.drawn)
    assert (plain.dropped, plain.stopped, impatient.dropped) == ([], 0, [])
