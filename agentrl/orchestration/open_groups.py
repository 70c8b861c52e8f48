"""`OpenGroups`: the tasks of the groups that nobody has trained on yet; a checkpoint keeps them."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.orchestration.env_mix import JobMaker
from agentrl.rollout import GroupJob, TaskRef
from agentrl.rollout.admission import num_groups
from agentrl.rollout.config import RolloutConfig


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What stands for a ticket."""

    task: TaskRef
    place: int
    """Among the groups of its step; behind its own are those that were drawn in their places."""


class OpenGroups:
    """Draws a task for each ticket, and others in the place of groups that were dropped."""

    def __init__(
        self, config: RolloutConfig, jobs: JobMaker, draw_one: Callable[[], TaskRef], kept: str
    ) -> None:
        """`draw_one` gives a further task, `kept` is what `to_json` gave before."""
        found: dict[str, Any] = json.loads(kept) if kept else {}
        self._per_step = config.tasks_per_step
        self._most = num_groups(config.tasks_per_step, config.refill)
        self._jobs, self._draw_one = jobs, draw_one
        self._open = {
            int(ticket): _Drawn(TaskRef(env, index), place)
            for ticket, env, index, place in found.get("open", ())
        }
        self._more = Counter({int(step): num for step, num in found.get("more", {}).items()})
        """Groups drawn in the place of others, by step."""
        self.next_ticket: int | None = found.get("next")
        """The first that nothing was drawn for; None: the first of the next step."""

    @property
    def tickets(self) -> Sequence[int]:
        """Of those that are open."""
        return [*self._open]

    def count_drawn(self, step: int) -> int:
        """How many groups are drawn for a step."""
        return self._per_step + self._more[step]

    def draw(self, ticket: int) -> GroupJob:
        """The group of a ticket; the one that was kept, if one was."""
        step, place = divmod(ticket, self._per_step)
        drawn = self._open.get(ticket) or _Drawn(self._draw_one(), place)
        self._open[ticket] = drawn
        return self._jobs.job(drawn.task, "train", step=step + 1, place=drawn.place)

    def draw_another(self, ticket: int) -> GroupJob | None:
        """A further group in the place of the one that is there; None if its step has no more."""
        step = ticket // self._per_step + 1
        place = self.count_drawn(step)
        if place >= self._most:
            return None
        self._open[ticket] = _Drawn(self._draw_one(), place)
        self._more[step] += 1
        return self.draw(ticket)

    def to_json(self, tickets: Sequence[int], next_ticket: int, step: int) -> str:
        """What stands for these tickets, all that are open behind a step; the others are forgotten.

        Empty if the number of the step says it all.
        """
        self._open = {ticket: self._open[ticket] for ticket in tickets}
        if not tickets and next_ticket == step * self._per_step:
            return ""
        steps = {ticket // self._per_step + 1 for ticket in tickets}
        return json.dumps(
            {
                "next": next_ticket,
                "open": [(t, d.task.env, d.task.index, d.place) for t, d in self._open.items()],
                "more": {step: num for step, num in self._more.items() if step in steps},
            }
        )
