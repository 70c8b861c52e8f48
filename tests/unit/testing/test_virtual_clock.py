"""Simulated runs whose times can be worked out by hand, and what faults do to them."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from agentrl.schedule import Allowance, Schedule
from agentrl.schedule.events import BeginEpisode
from agentrl.testing.virtual_clock import Fault, Workload, draw_attempt, lognormal, simulate


def a_second(rng: Random) -> float:
    return 1.0


def two_turns(rng: Random) -> int:
    return 2


def up_to_eight_turns(rng: Random) -> int:
    return rng.randint(1, 8)


def fixed(**numbers: Any) -> Workload:
    """Two turns of a second, three seconds of training, half a second of publishing."""
    given: dict[str, Any] = {"num_turns": two_turns, "turn_s": a_second}
    given |= {"train_s": 3.0, "publish_s": 0.5}
    return Workload(**given | numbers)


def schedule(**numbers: Any) -> Schedule:
    given: dict[str, Any] = {"groups_per_step": 2, "members": 2, "steps": 10}
    return Schedule(**given | numbers)


def heavy_tails() -> Workload:
    return fixed(turn_s=lognormal(1.0, 1.0), num_turns=up_to_eight_turns, train_s=1.0)


def test_synchronous_time_is_the_sum_of_its_parts() -> None:
    run = simulate(schedule(), fixed())
    assert run.step_s == pytest.approx(2.0 + 3.0 + 0.5)
    assert run.trainer_busy == pytest.approx(3.5 / 5.5)
    assert run.engine_busy == pytest.approx(2.0 / 5.5)
    assert run.trained[:4] == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert (run.steps, len(run.trained), run.lost, set(run.staleness)) == (10, 40, (), {0})


def test_running_ahead_hides_generation_behind_training() -> None:
    run = simulate(schedule(staleness=1), fixed())
    assert run.seconds == pytest.approx(2.0 + 10 * 3.5)
    assert run.staleness_at(0.0) == 0
    assert run.staleness_at(0.5) == run.staleness_at(1.0) == 1


def test_places_bound_how_fast_episodes_are_played() -> None:
    assert simulate(schedule(concurrency=2), fixed()).step_s == pytest.approx(4.0 + 3.5)


def test_the_bound_holds_and_more_of_it_is_faster() -> None:
    runs = {k: simulate(schedule(steps=60, staleness=k), heavy_tails()) for k in (0, 1, 4)}
    assert all(max(run.staleness) == k for k, run in runs.items())
    assert runs[0].seconds > 1.2 * runs[1].seconds > 1.2 * runs[4].seconds
    assert {frozenset(run.trained) for run in runs.values()} == {frozenset(runs[0].trained)}


def test_waiting_for_ends_before_a_publish_costs_time() -> None:
    partial, whole = (
        simulate(schedule(steps=60, staleness=2, partial=partial), heavy_tails())
        for partial in (True, False)
    )
    assert whole.seconds > 1.1 * partial.seconds


def test_a_seed_gives_the_same_run_again_and_another_seed_another() -> None:
    runs = [simulate(schedule(staleness=1), heavy_tails(), seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0].seconds != runs[2].seconds


def test_an_attempt_takes_the_times_that_are_drawn_for_it() -> None:
    workload = fixed(turn_s=lognormal(1.0, 1.0), num_turns=up_to_eight_turns, fails=0.5)
    drawn = [draw_attempt(workload, BeginEpisode(0, 0, number), seed=7) for number in range(3)]
    assert [attempt.fails for attempt in drawn] == [True, True, False]
    assert [len(attempt.turns_s) for attempt in drawn] == [5, 1, 1]
    run = simulate(schedule(groups_per_step=1, members=1, steps=1, attempts=3), workload, seed=7)
    assert run.seconds == pytest.approx(sum(sum(a.turns_s) for a in drawn) + 3.0 + 0.5)


def test_an_engine_that_hangs_adds_its_time() -> None:
    hung = simulate(schedule(), fixed(hangs=[(1.5, 20.0)]))
    assert hung.seconds == pytest.approx(10 * 5.5 + 20.0)


def test_failed_attempts_are_tried_again_and_then_lost() -> None:
    once, twice = (
        simulate(schedule(steps=50, attempts=attempts), fixed(fails=0.2)) for attempts in (1, 3)
    )
    assert 20 < len(once.lost) < 60
    assert len(twice.lost) < 10
    for run in (once, twice):
        assert len({*run.trained, *run.lost}) == len(run.trained) + len(run.lost) == 200


def test_dropped_groups_are_reported() -> None:
    run = simulate(schedule(steps=60, staleness=1, late="drop"), heavy_tails())
    assert run.lost
    assert not {*run.lost} & {*run.trained}
    assert len(run.trained) == 60 * 4


def test_more_groups_than_are_needed_hide_the_slowest() -> None:
    plain, more = (
        simulate(schedule(steps=60, late="drop"), heavy_tails(), Allowance(surplus=surplus))
        for surplus in (0, 2)
    )
    assert more.seconds < 0.8 * plain.seconds
    assert len(more.trained) == len(plain.trained) == 60 * 4
    assert (len(more.lost), len(plain.lost)) == (60 * 2 * 2, 0)
    assert set(more.staleness) == {0}


def test_a_straggler_is_left_behind_at_twice_the_time_of_the_others() -> None:
    lengths = iter([1, 1, 1, 9] * 2)

    def draw_turns(rng: Random) -> int:
        return next(lengths)

    work = fixed(num_turns=draw_turns, train_s=0.0, publish_s=0.0)
    run = simulate(schedule(members=4, steps=1), work, Allowance(stragglers=0.25))
    assert (run.seconds, run.lost) == (2.0, ((0, 3), (1, 3)))
    assert len(run.trained) == 6


def always(value: float) -> Callable[[Random], float]:
    return lambda rng: value


def strike(at: float, role: Any, kind: Any) -> Fault:
    return Fault(at, role, kind)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: strike(1.0, "cook", "dies"), "role: got 'cook', expected one of engine, env"),
        (lambda: strike(1.0, "engine", "sings"), "kind: got 'sings', expected one of dies, hangs"),
        (lambda: strike(-1.0, "engine", "dies"), "at: got -1.0, expected at least 0"),
        (lambda: strike(math.nan, "engine", "dies"), "at: got nan, expected at least 0"),
        (
            lambda: strike(1.0, "engine", "full disk"),
            "of the engine, which has no disk to fill; exp",
        ),
        (lambda: fixed(hangs=[(-1.0, 2.0)]), "hangs: got -1.0, expected at least 0 and finite"),
        (lambda: fixed(hangs=[(1.0, math.nan)]), "hangs: got nan, expected at least 0"),
        (lambda: fixed(hangs=[(1.0, math.inf)]), "hangs: got inf, expected at least 0"),
        (lambda: fixed(train_s=-1.0), "train_s: got -1.0, expected at least 0"),
        (lambda: fixed(train_s=math.nan), "train_s: got nan, expected at least 0"),
        (lambda: fixed(checkpoint_every=0), "checkpoint_every: got 0, expected at least 1"),
        (lambda: simulate(schedule(), fixed(turn_s=always(-1.0))), "turn_s: got -1.0, expected"),
        (lambda: simulate(schedule(), fixed(turn_s=always(math.nan))), "turn_s: got nan, exp"),
        (lambda: simulate(schedule(), fixed(num_turns=always(0))), "num_turns: got 0, expected"),
    ],
)
def test_what_cannot_happen_is_refused(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


def test_many_turns_at_once_slow_each_other() -> None:
    """4 turns of 1 s that share one engine take 4 s, and each leaves its part to the others."""
    schedule = Schedule(groups_per_step=1, members=4, steps=1)
    work = Workload(num_turns=lambda _: 1, turn_s=lambda _: 1.0, slowdown=float)
    assert simulate(schedule, work).seconds == pytest.approx(4.0)
    lengths = Workload(
        num_turns=lambda _: 1, turn_s=lambda rng: rng.choice((1.0, 2.0)), slowdown=float
    )
    drawn = [sum(draw_attempt(lengths, BeginEpisode(0, member, 0)).turns_s) for member in range(4)]
    assert simulate(schedule, lengths).seconds == pytest.approx(sum(drawn))


def test_an_environment_answers_beside_the_engine() -> None:
    """Two episodes of two turns and tools, all of which begin at the same time."""
    schedule = Schedule(groups_per_step=1, members=2, steps=1)
    work = Workload(
        num_turns=lambda _: 2,
        turn_s=lambda _: 1.0,
        environment_s=lambda _: 10.0,
        slowdown=float,
    )
    # 2 s for both turns, 10 for both tools, and both once more.
    assert simulate(schedule, work).seconds == pytest.approx(24.0)


def test_servers_stand_still_while_the_trainer_has_their_devices() -> None:
    schedule = Schedule(groups_per_step=1, members=1, steps=3, staleness=1)
    work = Workload(num_turns=lambda _: 1, turn_s=lambda _: 5.0, train_s=4.0)
    apart = simulate(schedule, work).seconds
    together = simulate(schedule, replace(work, stands_s=4.0)).seconds
    # Two episodes begin at 0 and the third after the first update, beside the second one.
    assert apart == pytest.approx(5 + 4 + 5 + 4)
    assert together == pytest.approx(apart + 4)
