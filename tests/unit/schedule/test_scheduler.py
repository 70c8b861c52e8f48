"""Small schedules, event by event."""

import math
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.schedule import Allowance, Schedule, Scheduler, Wait
from agentrl.schedule.events import (
    Action,
    BatchTrained,
    BeginEpisode,
    DrawGroup,
    DropGroup,
    EpisodeEnded,
    EpisodeWaits,
    FinishStep,
    GroupDrawn,
    GroupJudged,
    JudgeGroup,
    PublishWeights,
    Stalled,
    StepFinished,
    StopEpisode,
    Tick,
    TrainBatch,
    WakeAt,
    WeightsPublished,
)


def begun(schedule: Schedule, allowance: Allowance | None = None) -> Scheduler:
    """A scheduler whose first groups play."""
    scheduler = Scheduler(schedule, allowance)
    for action in scheduler.on(Tick(), 0.0):
        if isinstance(action, DrawGroup):
            scheduler.on(GroupDrawn(action.ticket), 0.0)
    return scheduler


def end(scheduler: Scheduler, ticket: int, now: float = 1.0) -> list[Action]:
    """The only member of a group ends, and the group stays."""
    assert scheduler.on(EpisodeEnded(ticket, 0), now)[0] == JudgeGroup(ticket)
    return scheduler.on(GroupJudged(ticket), now)


def update(scheduler: Scheduler, versions: int = 1) -> list[Action]:
    """Train, publish and finish; what the last of them leads to."""
    actions = scheduler.on(BatchTrained(versions), 2.0)
    if versions:
        assert actions[0] == PublishWeights(scheduler.version)
        actions = scheduler.on(WeightsPublished(), 2.0)
    assert FinishStep(scheduler.step + 1) in actions
    return actions + scheduler.on(StepFinished(), 2.0)


def one(**numbers: Any) -> Schedule:
    given: dict[str, Any] = {"groups_per_step": 1, "members": 1, "steps": 5}
    return Schedule(**given | numbers)


def test_a_synchronous_step_event_by_event() -> None:
    scheduler = Scheduler(one(members=2, steps=2))
    assert scheduler.on(Tick(), 0.0) == [WakeAt(60.0), DrawGroup(0)]
    assert scheduler.on(GroupDrawn(0), 1.0) == [BeginEpisode(0, 0, 0), BeginEpisode(0, 1, 0)]
    assert scheduler.on(EpisodeEnded(0, 1), 2.0) == []
    assert scheduler.on(EpisodeEnded(0, 0), 3.0) == [JudgeGroup(0)]
    assert scheduler.on(GroupJudged(0), 3.0) == [TrainBatch(1, (0,), 0, 0)]
    assert scheduler.on(BatchTrained(1), 4.0) == [PublishWeights(1)]
    assert scheduler.on(WeightsPublished(), 5.0) == [FinishStep(1)]
    assert scheduler.on(StepFinished(), 6.0) == [DrawGroup(1)]
    assert (scheduler.step, scheduler.version, scheduler.peak) == (1, 1, 2)


def test_places_come_free_at_a_publish_when_sampling_runs_ahead() -> None:
    scheduler = begun(one(staleness=1))
    assert scheduler.next_ticket == 2
    assert end(scheduler, 0) == [TrainBatch(1, (0,), 0, -1)]
    assert scheduler.on(BatchTrained(1), 2.0) == [PublishWeights(1)]
    assert scheduler.on(WeightsPublished(), 2.0) == [FinishStep(1), DrawGroup(2)]


def test_a_batch_waits_where_two_old_groups_would_be_left_for_one_later_batch() -> None:
    """Found by the random plays: three groups of version 0, of which two are slow, staleness 2."""
    scheduler = begun(one(staleness=2))
    assert end(scheduler, 2) == [TrainBatch(1, (2,), 0, -2)]
    update(scheduler)
    scheduler.on(GroupDrawn(3), 2.0)
    assert end(scheduler, 3) == [], "0 and 1 would both be due at version 2"
    assert scheduler.waits()[-1].owner == "1 old group"
    assert end(scheduler, 1) == [TrainBatch(2, (1,), 1, -1)]


def test_a_batch_is_of_the_oldest_groups() -> None:
    scheduler = begun(one(staleness=2))
    assert end(scheduler, 1) == [TrainBatch(1, (1,), 0, -2)]
    end(scheduler, 0)
    assert TrainBatch(2, (0,), 1, -1) in update(scheduler)


def test_a_late_group_is_masked_or_dropped() -> None:
    masks, drops = begun(one(staleness=1, late="mask")), begun(one(staleness=1, late="drop"))
    for scheduler in (masks, drops):
        end(scheduler, 1)
        update(scheduler)
        scheduler.on(GroupDrawn(2), 2.0)
        assert end(scheduler, 2) == [TrainBatch(2, (2,), 1, 0)]
    assert masks.on(BatchTrained(1), 2.0) == [PublishWeights(2)]
    assert drops.on(BatchTrained(1), 2.0)[:2] == [DropGroup(0), PublishWeights(2)]
    with pytest.raises(ValueError, match="expected a running episode"):
        drops.on(EpisodeEnded(0, 0), 3.0)


def test_a_run_that_dropped_groups_has_enough_of_them_after_a_resume() -> None:
    scheduler = Scheduler(one(steps=2), step=1, version=1, ticket=4, open_tickets=[])
    assert DrawGroup(4) in scheduler.on(Tick(), 0.0)


def test_open_tickets_are_drawn_again_before_new_ones() -> None:
    scheduler = Scheduler(one(staleness=1), step=2, version=2, ticket=4, open_tickets=[1, 3])
    assert scheduler.open_tickets == [1, 3]
    assert scheduler.on(Tick(), 0.0)[1:] == [DrawGroup(1), DrawGroup(3)]
    assert scheduler.open_tickets == [1, 3]


def test_places_are_given_to_the_first_tickets() -> None:
    scheduler = Scheduler(one(groups_per_step=3, concurrency=1))
    scheduler.on(Tick(), 0.0)
    assert scheduler.on(GroupDrawn(2), 0.0) == [BeginEpisode(2, 0, 0)]
    assert scheduler.on(GroupDrawn(1), 0.0) == scheduler.on(GroupDrawn(0), 0.0) == []
    assert Wait("each of 2 episodes", "place", 0.0) in scheduler.waits()
    assert scheduler.on(EpisodeEnded(2, 0), 1.0) == [JudgeGroup(2), BeginEpisode(0, 0, 0)]
    assert Wait("an episode", "place", 1.0) in scheduler.waits()


def test_an_attempt_is_followed_by_another_while_some_are_left() -> None:
    scheduler = begun(one(attempts=2))
    assert scheduler.on(EpisodeEnded(0, 0, retry=True), 1.0) == [BeginEpisode(0, 0, 1)]
    assert scheduler.on(EpisodeEnded(0, 0, retry=True), 2.0) == [JudgeGroup(0)]


def test_a_replaced_group_is_played_anew_and_an_empty_one_is_ready() -> None:
    scheduler = begun(one())
    scheduler.on(EpisodeEnded(0, 0), 1.0)
    assert scheduler.on(GroupJudged(0, replaced=True), 1.0) == [BeginEpisode(0, 0, 0)]
    assert end(scheduler, 0) == [TrainBatch(1, (0,), 0, 0)]
    assert update(scheduler)[-1] == DrawGroup(1)
    assert scheduler.on(GroupDrawn(1, is_empty=True), 3.0) == [TrainBatch(2, (1,), 1, 1)]


def test_a_batch_that_changed_nothing_is_not_published() -> None:
    scheduler = begun(one())
    end(scheduler, 0)
    assert scheduler.on(BatchTrained(0), 1.0) == [FinishStep(1)]
    assert scheduler.version == 0


def test_without_partial_generation_a_publish_waits_and_nothing_begins() -> None:
    scheduler = begun(one(staleness=1, partial=False, attempts=2))
    end(scheduler, 0)
    assert scheduler.on(BatchTrained(1), 2.0) == []
    assert Wait("the trainer", "episodes that no update may cross", 2.0) in scheduler.waits()
    assert scheduler.on(EpisodeEnded(1, 0), 3.0) == [JudgeGroup(1), PublishWeights(1)]
    begins = begun(one(staleness=1, partial=True))
    end(begins, 0)
    assert begins.on(BatchTrained(1), 2.0) == [PublishWeights(1)]


def test_each_wait_names_its_owner_and_since_when() -> None:
    scheduler = begun(one(groups_per_step=2))
    scheduler.on(EpisodeWaits(0, 0, "engine"), 4.0)
    assert scheduler.waits() == [
        Wait("episode 1.0", "environment", 0.0),
        Wait("the trainer", "2 more groups", 0.0),
        Wait("episode 0.0", "engine", 4.0),
    ]
    end(scheduler, 0)
    end(scheduler, 1, now=5.0)
    assert scheduler.waits() == [Wait("the trainer", "the update", 5.0)]
    scheduler.on(BatchTrained(1), 6.0)
    assert scheduler.waits() == [Wait("the trainer", "the engine to take weights", 6.0)]
    scheduler.on(WeightsPublished(), 7.0)
    assert [f"{wait.who} waits for {wait.owner}" for wait in scheduler.waits()] == [
        "the trainer waits for evaluation, metrics and checkpoint"
    ]


def test_a_stall_is_said_when_nothing_came_for_long() -> None:
    scheduler = begun(one(stall_s=10.0))
    scheduler.on(EpisodeWaits(0, 0, "engine"), 4.0)
    assert scheduler.on(Tick(), 10.0) == [WakeAt(14.0)]
    assert scheduler.on(Tick(), 14.0) == [Stalled(4.0), WakeAt(24.0)]
    assert scheduler.on(Tick(), 24.0) == [Stalled(4.0), WakeAt(34.0)]


def test_groups_are_played_once_where_nothing_is_trained() -> None:
    scheduler = begun(one(groups_per_step=2, steps=1, trains=False))
    assert not scheduler.is_over
    assert end(scheduler, 1) == end(scheduler, 0) == []
    assert scheduler.is_over


def test_what_cannot_have_happened_is_refused() -> None:
    scheduler = begun(one())
    with pytest.raises(ValueError, match="but the trainer is collecting, expected training"):
        scheduler.on(BatchTrained(1), 1.0)
    with pytest.raises(ValueError, match="expected an open group"):
        scheduler.on(GroupJudged(7), 1.0)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"staleness": 1, "updates": 2}, "async.staleness: got 1, expected 0 or at least 2"),
        ({"groups_per_step": 0}, "groups_per_step: got 0, expected at least 1"),
        ({"members": 0}, "members: got 0, expected"),
        ({"steps": -1}, "steps: got -1, expected"),
        ({"attempts": 0}, "attempts: got 0, expected"),
        ({"updates": 0}, "updates: got 0, expected"),
        ({"concurrency": 0}, "concurrency: got 0, expected"),
        ({"late": "often"}, "late: got 'often', expected one of wait, mask, drop"),
    ],
)
def test_what_no_schedule_has_is_refused(numbers: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        one(**numbers)


def test_no_episode_begins_while_an_update_waits_for_the_ends_of_others() -> None:
    scheduler = begun(one(members=2, staleness=1, concurrency=3, partial=False))
    scheduler.on(EpisodeEnded(0, 0), 1.0)  # 1.1 begins in its place
    scheduler.on(EpisodeEnded(0, 1), 1.0)
    assert TrainBatch(1, (0,), 0, -1) in scheduler.on(GroupJudged(0), 1.0)
    scheduler.on(EpisodeEnded(1, 0), 1.0)
    assert scheduler.on(BatchTrained(1), 2.0) == []
    assert scheduler.on(EpisodeEnded(1, 1), 2.0) == [JudgeGroup(1), PublishWeights(1)]
    assert scheduler.on(GroupJudged(1, replaced=True), 2.0) == [], "begun before the publish"


def test_a_group_in_anothers_place_is_as_old_as_its_own_episodes() -> None:
    scheduler = begun(one(staleness=2))
    end(scheduler, 0)
    scheduler.on(BatchTrained(1), 2.0)
    scheduler.on(WeightsPublished(), 2.0)
    assert scheduler.on(EpisodeEnded(1, 0), 2.0) == [JudgeGroup(1)]
    assert BeginEpisode(1, 0, 0) in scheduler.on(GroupJudged(1, replaced=True), 2.0)
    end(scheduler, 1)
    end(scheduler, 2)
    assert TrainBatch(2, (2,), 1, -1) in scheduler.on(StepFinished(), 2.0)


def test_a_free_place_stays_free_while_an_update_waits() -> None:
    scheduler = begun(one(members=3, staleness=1, concurrency=2, partial=False))
    for member in range(3):
        scheduler.on(EpisodeEnded(0, member), 1.0)
    scheduler.on(GroupJudged(0), 1.0)
    scheduler.on(BatchTrained(1), 2.0)
    assert scheduler.on(EpisodeEnded(1, 0), 2.0) == []


def test_the_first_groups_that_are_ready_are_trained_on() -> None:
    numbers = one(groups_per_step=2, steps=2, late="drop", concurrency=3)
    scheduler = begun(numbers, Allowance(surplus=2))
    assert scheduler.open_tickets == [0, 1, 2, 3]
    assert end(scheduler, 1) == []
    assert end(scheduler, 3) == [DropGroup(0), DropGroup(2), TrainBatch(1, (1, 3), 0, 0)]
    assert update(scheduler)[-4:] == [DrawGroup(ticket) for ticket in (4, 5, 6, 7)]


def test_what_has_not_begun_begins_in_the_next_step() -> None:
    scheduler = begun(one(late="drop", concurrency=1), Allowance(surplus=1))
    assert end(scheduler, 0) == [DropGroup(1), TrainBatch(1, (0,), 0, 0)]
    waits = Scheduler(one(late="drop", concurrency=1), Allowance(surplus=1))
    assert waits.on(Tick(), 0.0)[1:] == [DrawGroup(0), DrawGroup(1)]
    waits.on(GroupDrawn(0), 0.0)
    assert end(waits, 0) == [TrainBatch(1, (0,), 0, 0)]
    assert waits.on(GroupDrawn(1), 1.0) == [], "beside the update"
    assert update(waits)[-2:] == [DrawGroup(2), BeginEpisode(1, 0, 0)]


def test_nothing_is_drawn_behind_the_last_batch() -> None:
    scheduler = begun(one(steps=1, late="drop"), Allowance(surplus=3))
    assert end(scheduler, 0)[-1] == TrainBatch(1, (0,), 0, 0)
    assert update(scheduler) == [FinishStep(1)]
    assert scheduler.is_over


def test_slow_members_are_stopped_at_a_time_that_follows_from_the_others() -> None:
    scheduler = begun(one(members=4, attempts=2), Allowance(stragglers=0.5))
    assert scheduler.on(EpisodeEnded(0, 0), 2.0) == []
    assert scheduler.on(EpisodeEnded(0, 1), 4.0) == [
        StopEpisode(0, 2, 6.0),
        StopEpisode(0, 3, 6.0),
    ]
    again = scheduler.on(EpisodeEnded(0, 2, retry=True), 5.0)
    assert again == [BeginEpisode(0, 2, 1), StopEpisode(0, 2, 11.0)], "its own time begins anew"
    assert scheduler.on(EpisodeEnded(0, 3, stopped=True), 6.0) == []
    assert scheduler.on(EpisodeEnded(0, 2), 10.0) == [JudgeGroup(0)]
    assert StopEpisode not in map(type, scheduler.on(GroupJudged(0, replaced=True), 10.0))


def test_a_member_that_ends_in_time_makes_the_others_wait_longer() -> None:
    scheduler = begun(one(members=3), Allowance(stragglers=0.7))
    assert scheduler.on(EpisodeEnded(0, 0), 2.0)[-1] == StopEpisode(0, 2, 4.0)
    assert scheduler.on(EpisodeEnded(0, 1), 3.0) == [StopEpisode(0, 2, 5.0)]


def test_only_a_share_of_a_group_is_left_behind() -> None:
    allowance = Allowance(stragglers=0.29)
    assert allowance.patience([1.0] * 70, 100) == math.inf
    assert allowance.patience([1.0, 9.0, 3.0] + [5.0] * 68, 100) == 10.0
    assert Allowance().patience([1.0], 2) == math.inf
