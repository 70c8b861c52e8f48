"""Which tasks a step trains on, so that a resumed run agrees with one that was not stopped."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol, cast, runtime_checkable

import numpy as np

from agentrl.boundary import user_code
from agentrl.config.seams import Seam, check_function
from agentrl.errors import AgentrlError, ConfigError, RunError
from agentrl.rollout.config import RolloutConfig
from agentrl.types.episode import derive_seed


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
    streams = [
        _draw_task_indices(source, derive_seed(seed, "order", i))
        for i, source in enumerate(sources)
    ]
    while True:
        envs = rng.choice(len(sources), size=tasks_per_step, p=weights / weights.sum())
        yield [TaskRef(int(env), next(streams[int(env)])) for env in envs]


def _draw_task_indices(source: EnvSource, seed: int) -> Iterator[int]:
    """0, 1, 2, ... without end, or one random permutation per epoch of a finite set."""
    if source.num_tasks is None:
        index = 0
        while True:
            yield index
            index += 1
    rng = np.random.default_rng(seed)
    while True:
        yield from (int(i) for i in rng.permutation(source.num_tasks))


@runtime_checkable
class Resumable(Protocol):
    """A sampler that a resumed run sets to where it was, instead of asking for all steps again."""

    def state(self) -> object:
        """Where it is, as JSON has it."""
        ...

    def load(self, state: object) -> None:
        """Go on from there; it has just been made with the same arguments."""
        ...


SAMPLERS: Final = Seam("sampler", {"mixture": task_stream}, "agentrl.samplers")


class TaskSampler:
    """The tasks of step 1, 2, ... by the configured sampler, and further ones for a step.

    The sampler's lists are one stream of tasks: what a step takes beyond its own is taken from the
    next list, and the step after it begins behind that.
    """

    def __init__(
        self,
        config: RolloutConfig,
        sources: Sequence[EnvSource],
        *,
        seed: int,
        given: object = None,
    ) -> None:
        """`given` is the sampler where it is an object. Raises ConfigError if there is none."""
        self._label = SAMPLERS.label(config.sampler)
        self._sources, self._count = sources, config.tasks_per_step
        self._lists = 0
        self._left: deque[TaskRef] = deque()
        """What is left of the last list."""
        found = SAMPLERS.find(config.sampler if given is None else given)
        check_function(found, self._label, "sources", keywords=("tasks_per_step", "seed"))
        sampler = cast("Callable[..., Iterator[object]]", found)
        with user_code(self._label, fault=RunError):
            self._stream = iter(sampler(sources, tasks_per_step=self._count, seed=seed))

    def draw(self) -> list[TaskRef]:
        """The tasks of the next step.

        Raises:
            RunError: they are no tasks of these environments, or too few.
        """
        return [self.draw_one() for _ in range(self._count)]

    def draw_one(self) -> TaskRef:
        """One task more for the step; raises as `draw`."""
        if not self._left:
            self._left += self._draw_list()
        return self._left.popleft()

    def _draw_list(self) -> list[TaskRef]:
        self._lists += 1
        number = self._lists
        with user_code(self._label, fault=RunError):
            drawn = next(self._stream, None)
            refs = None if drawn is None else list(cast("Iterable[object]", drawn))
        if refs is None:
            raise RunError(f"{self._label} ended before step {number}; it has to go on without end")
        if len(refs) != self._count:
            raise RunError(
                f"{self._label} gave {len(refs)} tasks for step {number}, expected "
                f"rollout.tasks_per_step ({self._count})"
            )
        for ref in refs:
            if fault := _find_fault_of_task(ref, self._sources):
                got, expected = fault
                raise RunError(f"{self._label} gave {got} step {number}, expected {expected}")
        return cast("list[TaskRef]", refs)

    def state(self, step: int) -> str:
        """Where it is behind a step, as JSON; empty where the number of steps alone says it.

        Raises:
            RunError: its state is no JSON.
        """
        own = None
        if isinstance(self._stream, Resumable):
            with user_code(f"{self._label}: state", fault=RunError):
                own = json.dumps(self._stream.state())
        if own is None and self._lists == step and not self._left:
            return ""
        left = [(ref.env, ref.index) for ref in self._left]
        return json.dumps({"lists": self._lists, "left": left, "own": own})

    def load(self, step: int, state: str) -> None:
        """Go on behind a step, after which the state was this."""
        found: dict[str, Any] = json.loads(state) if state else {"lists": step}
        self._lists = int(found["lists"])
        self._left = deque(TaskRef(env, index) for env, index in found.get("left", ()))
        own: str | None = found.get("own")
        with user_code(f"{self._label}: load", fault=RunError):
            if own is not None and isinstance(self._stream, Resumable):
                self._stream.load(json.loads(own))
            else:
                deque(islice(self._stream, self._lists), maxlen=0)


def check_sampler(
    config: RolloutConfig, sources: Sequence[EnvSource], *, seed: int, given: object = None
) -> None:
    """Raise ConfigError for a sampler that is not sound in its first steps, or cannot go on."""
    label = SAMPLERS.label(config.sampler)
    try:
        first, second, resumed = (
            TaskSampler(config, sources, seed=seed, given=given) for _ in range(3)
        )
        expected = [first.draw(), first.draw()]
        again = [second.draw()]
        state = second.state(1)
        again.append(second.draw())
        resumed.load(1, state)
        later = resumed.draw()
    except AgentrlError as error:
        raise ConfigError(str(error)) from error
    if expected != again:
        raise ConfigError(
            f"{label} gave other tasks the second time, expected the same for the same seed: a "
            "resumed run has to go on as one that was not stopped"
        )
    if later != expected[1]:
        raise ConfigError(
            f"{label} gave other tasks after load(state()), expected those of the next step"
        )


def _find_fault_of_task(ref: object, sources: Sequence[EnvSource]) -> tuple[str, str] | None:
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
