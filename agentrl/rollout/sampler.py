"""Which tasks a step trains on: a function of (run seed, step) alone, so a resumed run agrees."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, cast

import numpy as np

from agentrl.boundary import user_code
from agentrl.config.seams import Seam, check_function
from agentrl.errors import AgentrlError, ConfigError, RunError
from agentrl.rollout.config import RolloutConfig
from agentrl.types.identity import derive_seed


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


SAMPLERS: Final = Seam("sampler", {"mixture": task_stream}, "agentrl.samplers")
_TRIED_STEPS: Final = 2


def sample_tasks(
    config: RolloutConfig, sources: Sequence[EnvSource], *, seed: int, given: object = None
) -> Iterator[list[TaskRef]]:
    """The tasks of step 1, 2, ... by the configured sampler; `given` is it where it is an object.

    Raises:
        ConfigError: there is none.
        RunError: it gives what are no tasks of these environments, or too few.
    """
    label = SAMPLERS.label(config.sampler)
    found = SAMPLERS.find(config.sampler if given is None else given)
    count = config.tasks_per_step
    check_function(found, label, "sources", keywords=("tasks_per_step", "seed"))
    sampler = cast("Callable[..., Iterator[list[TaskRef]]]", found)
    with user_code(label, fault=RunError):
        stream = iter(sampler(sources, tasks_per_step=count, seed=seed))
    step = 0
    while True:
        step += 1
        with user_code(label, fault=RunError):
            refs = next(stream, None)
        if refs is None:
            raise RunError(f"{label} ended before step {step}; it has to go on without end")
        if len(refs) != count:
            raise RunError(
                f"{label} gave {len(refs)} tasks for step {step}, expected rollout.tasks_per_step "
                f"({count})"
            )
        for ref in refs:
            if fault := _fault_of(ref, sources):
                raise RunError(f"{label} gave {fault[0]} step {step}, expected {fault[1]}")
        yield refs


def check_sampler(
    config: RolloutConfig, sources: Sequence[EnvSource], *, seed: int, given: object = None
) -> None:
    """Raise ConfigError for a sampler whose first steps are not sound, or other the second time."""
    try:
        once, again = (
            list(islice(sample_tasks(config, sources, seed=seed, given=given), _TRIED_STEPS))
            for _ in range(2)
        )
    except AgentrlError as error:
        raise ConfigError(str(error)) from error
    if once != again:
        raise ConfigError(
            f"{SAMPLERS.label(config.sampler)} gave other tasks the second time, expected the same "
            "for the same seed: a resumed run goes on from a step's number alone"
        )


def _fault_of(ref: object, sources: Sequence[EnvSource]) -> tuple[str, str] | None:
    """What is wrong with a task, and what was expected."""
    if not isinstance(ref, TaskRef):
        return f"a {type(ref).__name__} among the tasks of", "TaskRefs"
    if not 0 <= ref.env < len(sources):
        return f"environment number {ref.env} in", f"0 to {len(sources) - 1}"
    most = sources[ref.env].num_tasks
    if ref.index < 0 or (most is not None and ref.index >= most):
        below = "0 or above" if most is None else f"0 to {most - 1}"
        return f"task number {ref.index} of environment number {ref.env} in", below
    return None
