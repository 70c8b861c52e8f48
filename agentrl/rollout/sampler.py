"""Which tasks a step trains on: a function of (run seed, step) alone, so a resumed run agrees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.rollout.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class TaskRef:
    """The task with number `index` of environment number `env`."""

    env: int
    index: int


@dataclass(frozen=True, slots=True)
class EnvSource:
    """What the sampler needs to know of an environment."""

    weight: float
    num_tasks: int | None
    """None if tasks are made without end; then every index comes once."""


def task_stream(
    sources: Sequence[EnvSource], *, tasks_per_step: int, seed: int
) -> Iterator[list[TaskRef]]:
    """The tasks of step 1, 2, ...: environments drawn by weight, finite ones in shuffled epochs."""
    rng = np.random.default_rng(derive_seed(seed, "mixture"))
    weights = np.array([source.weight for source in sources], dtype=np.float64)
    streams = [_indices(source, derive_seed(seed, "order", i)) for i, source in enumerate(sources)]
    while True:
        envs = rng.choice(len(sources), size=tasks_per_step, p=weights / weights.sum())
        yield [TaskRef(int(env), next(streams[int(env)])) for env in envs]


def _indices(source: EnvSource, seed: int) -> Iterator[int]:
    """0, 1, 2, ... without end, or one random permutation per epoch of a finite set."""
    if source.num_tasks is None:
        index = 0
        while True:
            yield index
            index += 1
    rng = np.random.default_rng(seed)
    while True:
        yield from (int(i) for i in rng.permutation(source.num_tasks))
