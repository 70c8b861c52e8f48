"""Which task stands for a ticket: drawn once, replaced, and the same one after a resume."""

from itertools import count
from typing import Any

from agentrl.orchestration.open_groups import OpenGroups
from agentrl.rollout import RolloutConfig, TaskRef


class Jobs:
    """A job is its task, its step and its place."""

    def job(self, ref: TaskRef, split: str, *, step: int, place: int) -> tuple[int, int, int]:
        assert (ref.env, split) == (0, "train")
        return ref.index, step, place


def opened(kept: str = "", first: int = 0, refill: float = 2) -> Any:
    config = RolloutConfig.model_validate({"tasks_per_step": 3, "refill": refill})
    numbers = count(first)
    jobs: Any = Jobs()
    return OpenGroups(config, jobs, lambda: TaskRef(0, next(numbers)), kept)


def test_each_ticket_has_a_task_and_others_behind_those_of_its_step() -> None:
    groups = opened()
    assert [groups.draw(ticket) for ticket in (0, 1, 2, 3)] == [
        (0, 1, 0),
        (1, 1, 1),
        (2, 1, 2),
        (3, 2, 0),
    ]
    assert groups.draw_another(1) == (4, 1, 3)
    assert groups.draw_another(3) == (5, 2, 3)
    assert [groups.draw_another(ticket) for ticket in (0, 1)] == [(6, 1, 4), (7, 1, 5)]
    assert (groups.count_drawn(1), groups.count_drawn(2), groups.count_drawn(3)) == (6, 4, 3)
    assert groups.draw_another(2) is None, "2 times 3 groups are drawn for the step"
    assert opened(refill=1).draw_another(0) is None


def test_a_resumed_run_plays_what_stands_for_a_ticket_now() -> None:
    groups = opened()
    for ticket in range(6):
        groups.draw(ticket)
    groups.draw_another(4)
    kept = groups.to_json([4, 5], next_ticket=6, step=1)
    again = opened(kept, first=7)
    assert (again.next_ticket, again.tickets) == (6, [4, 5])
    assert (again.draw(4), again.draw(5), again.draw(6)) == ((6, 2, 3), (5, 2, 2), (7, 3, 0))
    assert again.draw_another(4) == (8, 2, 4), "not at the place of the one before the resume"
    assert again.count_drawn(2) == 5


def test_what_was_trained_on_or_given_up_is_forgotten() -> None:
    groups = opened()
    for ticket in range(5):
        groups.draw(ticket)
    groups.draw_another(0)
    assert opened(groups.to_json([4], next_ticket=5, step=1)).tickets == [4]
    assert groups.tickets == [4]
    assert opened(groups.to_json([], next_ticket=5, step=1)).next_ticket == 5
    assert groups.to_json([], next_ticket=6, step=2) == ""
    assert opened("").next_ticket is None
