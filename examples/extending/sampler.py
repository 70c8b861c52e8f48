from collections.abc import Iterator, Sequence
from itertools import count

from agentrl.rollout import EnvSource, TaskRef


def in_order(
    sources: Sequence[EnvSource], *, tasks_per_step: int, seed: int
) -> Iterator[list[TaskRef]]:
    """The environments in turn, the tasks of each in their order, again and again."""
    for first in count(0, tasks_per_step):
        numbers = range(first, first + tasks_per_step)
        yield [_task(sources, number) for number in numbers]


def _task(sources: Sequence[EnvSource], number: int) -> TaskRef:
    index, env = divmod(number, len(sources))
    return TaskRef(env, index % (sources[env].num_tasks or index + 1))
