"""200 seeded runs under the virtual clock, with faults of every role in every phase."""

from collections import Counter
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, get_args, get_type_hints

import pytest

from agentrl.schedule import Schedule
from agentrl.schedule.config import Late
from agentrl.testing.virtual_clock import Fault, Simulated, Workload, lognormal, simulate

SCENARIOS = 200
DEADLINE_S, RESTART_S = 5.0, 3.0
ROLES: tuple[Any, ...] = get_args(get_type_hints(Fault)["role"])
KINDS: tuple[Any, ...] = get_args(get_type_hints(Fault)["kind"])
PHASES = {
    "groups": "collecting",
    "the update": "training",
    "episodes that no update may cross": "training",
    "the engine to take weights": "publishing",
    "evaluation, metrics and checkpoint": "finishing",
}
WORK = Workload(
    num_turns=lambda rng: rng.randint(1, 4),
    turn_s=lognormal(2.0, 1.0),
    train_s=6.0,
    publish_s=4.0,
    finish_s=4.0,
    deadline_s=DEADLINE_S,
    restart_s=RESTART_S,
)


def draw_schedule(rng: Random) -> Schedule:
    updates = rng.choice((1, 1, 2))
    return Schedule(
        groups_per_step=rng.randint(1, 4),
        members=rng.randint(1, 4),
        steps=rng.randint(3, 6),
        attempts=rng.randint(1, 3),
        concurrency=rng.choice((None, 3, 8)),
        staleness=rng.choice((0, updates, 4)),
        updates=updates,
        late=rng.choice(get_args(Late)),
        partial=rng.random() < 0.8,
    )


def is_possible(role: str, kind: str) -> bool:
    """Only where something is written a disk can be full."""
    return kind != "full disk" or role in ("sandbox host", "trainer")


def draw_faults(rng: Random, until_s: float) -> tuple[Fault, ...]:
    kinds: dict[str, list[Any]] = {
        role: [k for k in KINDS if is_possible(role, k)] for role in ROLES
    }
    roles = rng.choices(ROLES, (4, 4, 4, 4, 3), k=rng.randint(2, 8))
    return tuple(Fault(rng.uniform(0, until_s), role, rng.choice(kinds[role])) for role in roles)


@cache
def play(number: int) -> tuple[Schedule, Simulated, Simulated]:
    """The schedule of a scenario, its undisturbed run, and the one with faults."""
    rng = Random(f"chaos {number}")
    schedule = draw_schedule(rng)
    calm = simulate(schedule, WORK, seed=number)
    work = replace(
        WORK, faults=draw_faults(rng, calm.seconds), checkpoint_every=rng.choice((1, 1, 2))
    )
    return schedule, calm, simulate(schedule, work, seed=number)


def all_places(schedule: Schedule, run: Simulated) -> set[tuple[int, int]]:
    """Of the groups of all steps, and of those that were played in the place of dropped ones."""
    tickets = {*range(schedule.tickets_until(schedule.steps))}
    if schedule.late == "drop":
        tickets |= {ticket for ticket, _ in (*run.trained, *run.lost)}
    return {(ticket, member) for ticket in tickets for member in range(schedule.members)}


@pytest.mark.parametrize("first", range(0, SCENARIOS, 20))
def test_what_is_trained_differs_from_an_undisturbed_run_by_what_is_reported_lost(
    first: int,
) -> None:
    for number in range(first, first + 20):
        schedule, calm, run = play(number)
        assert run.steps == schedule.steps, number
        trained, lost = Counter(run.trained), Counter(run.lost)
        assert {*trained.values()} <= {1}, (number, "trained twice")
        assert {*lost.values()} <= {1}, (number, "lost twice")
        assert not trained & lost, (number, "lost, but trained")
        assert {*trained, *lost} == all_places(schedule, run), (number, "gone without a word")
        if schedule.late == "wait":
            assert Counter(calm.trained) == trained + lost, number
            assert run.staleness_at(1.0) <= schedule.staleness, number


def test_all_roles_are_struck_in_all_phases_by_all_kinds_of_faults() -> None:
    struck = {
        (fault.role, fault.kind, phase)
        for number in range(SCENARIOS)
        for fault, owner in play(number)[2].struck
        for what, phase in PHASES.items()
        if owner.endswith(what)
    }
    wanted = {
        (role, kind, phase)
        for role in ROLES
        for kind in KINDS
        for phase in PHASES.values()
        if is_possible(role, kind)
    }
    assert wanted == struck


def test_a_fault_costs_its_deadline_a_restart_and_what_is_done_again_and_no_more() -> None:
    for number in range(SCENARIOS):
        schedule, calm, run = play(number)
        if not run.resumed and schedule.late == "wait" and not run.lost:
            again = max(run.seconds - calm.seconds, 0.0) / len(run.struck)
            assert again < DEADLINE_S + RESTART_S + 2 * calm.step_s, number


def test_a_run_that_was_killed_under_staleness_4_trains_each_prompt_once() -> None:
    schedule = Schedule(groups_per_step=3, members=2, steps=12, staleness=4)
    calm = simulate(schedule, WORK)
    for seed in range(20):
        rng = Random(seed)
        kills = [Fault(rng.uniform(0, calm.seconds), "trainer", "dies") for _ in range(4)]
        run = simulate(schedule, replace(WORK, faults=kills, checkpoint_every=3), seed=seed)
        assert run.resumed == 4
        assert Counter(run.trained) == Counter(calm.trained)
        assert run.staleness_at(1.0) <= 4


@pytest.mark.parametrize(
    ("fault", "more_s"),
    [
        (Fault(1.0, "engine", "dies"), RESTART_S),
        (Fault(1.0, "engine", "hangs"), DEADLINE_S + RESTART_S),
        (Fault(1.0, "engine", "slow"), DEADLINE_S / 2),
        (Fault(1.0, "engine", "wrong"), 1.0),
        (Fault(1.0, "environment", "hangs"), DEADLINE_S + 1.0),
        (Fault(1.0, "sandbox host", "hangs"), DEADLINE_S + 1.0),
        (Fault(1.0, "sandbox host", "full disk"), 1.0),
        (Fault(1.0, "verifier", "dies"), 1.0),
        (Fault(2.5, "trainer", "slow"), DEADLINE_S / 2),
        (Fault(2.5, "trainer", "hangs"), DEADLINE_S + RESTART_S + 2.5),
        (Fault(6.5, "engine", "dies"), RESTART_S),
        (Fault(6.5, "trainer", "full disk"), RESTART_S + 6.5),
    ],
)
def test_what_a_fault_costs(fault: Fault, more_s: float) -> None:
    """Two seconds are played, four trained, two published; then a checkpoint takes one."""
    work = Workload(
        num_turns=lambda _: 1,
        turn_s=lambda _: 2.0,
        train_s=4.0,
        publish_s=2.0,
        finish_s=1.0,
        deadline_s=DEADLINE_S,
        restart_s=RESTART_S,
    )
    schedule = Schedule(groups_per_step=1, members=2, steps=1, attempts=2)
    calm, run = (simulate(schedule, replace(work, faults=faults)) for faults in ((), (fault,)))
    assert calm.seconds == 9.0
    assert run.seconds == pytest.approx(9.0 + more_s)
    assert sorted(run.trained) == sorted(calm.trained)
    assert not run.lost
