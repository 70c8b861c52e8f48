"""A sampler of tasks of a user's: a function of seed and step, which each step is checked for."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ConfigError, RunError
from agentrl.rollout import EnvSource, RolloutConfig, TaskRef
from agentrl.rollout.sampler import TaskSampler, check_sampler, task_stream

SOURCES = [EnvSource(1.0, None), EnvSource(2.0, 3)]
EXAMPLES = f"{Path(__file__).parents[3]}/examples/extending"
OWN = f"{EXAMPLES}/sampler.py:in_order"
STATEFUL = f"{EXAMPLES}/sampler_with_state.py:AtRandom"
FOUR = {"tasks_per_step": 4}
Sampler = Callable[..., Iterator[Any]]


def steps(config: RolloutConfig, given: object = None) -> list[list[TaskRef]]:
    sampler = TaskSampler(config, SOURCES, seed=3, given=given)
    return [sampler.draw() for _ in range(3)]


def test_by_default_it_is_the_mixture() -> None:
    expected = list(islice(task_stream(SOURCES, tasks_per_step=4, seed=3), 3))
    assert steps(RolloutConfig.model_validate(FOUR)) == expected


def test_one_of_one_s_own() -> None:
    config = RolloutConfig.model_validate({**FOUR, "sampler": OWN})
    check_sampler(config, SOURCES, seed=3)
    found = [(ref.env, ref.index) for step in steps(config) for ref in step]
    assert found[:8] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 0)]


def of(*step: Any) -> Sampler:
    def sampler(sources: Any, *, tasks_per_step: int, seed: int) -> Iterator[Any]:
        while True:
            yield list(step)

    return sampler


def ends(sources: Any, *, tasks_per_step: int, seed: int) -> Iterator[Any]:
    yield [TaskRef(0, 0)] * tasks_per_step


def forgets_the_seed() -> Sampler:
    numbers = iter(range(1000))

    def sampler(sources: Any, *, tasks_per_step: int, seed: int) -> Iterator[Any]:
        while True:
            yield [TaskRef(0, next(numbers)) for _ in range(tasks_per_step)]

    return sampler


def raises(sources: Any, *, tasks_per_step: int, seed: int) -> Iterator[Any]:
    raise KeyError("difficulty")


def not_a_stream(sources: Any, *, tasks_per_step: int, seed: int) -> Any:
    return 7


GOOD = TaskRef(0, 5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (of(GOOD), "<it> gave 1 tasks for step 1, expected rollout.tasks_per_step (4)"),
        (of(GOOD, GOOD, GOOD, 5), "<it> gave a int among the tasks of step 1, expected TaskRefs"),
        (of(GOOD, GOOD, GOOD, TaskRef(2, 0)), "gave environment number 2 in step 1, expected 0 to"),
        (of(GOOD, GOOD, GOOD, TaskRef(1, 3)), "gave task number 3 of environment number 1 in step"),
        (of(GOOD, GOOD, GOOD, TaskRef(0, -1)), "gave task number -1 of environment number 0"),
        (ends, "<it> ended before step 2; it has to go on without end"),
        (forgets_the_seed(), "<it> gave other tasks the second time, expected the same for the sa"),
        (raises, "<it> raised KeyError: 'difficulty'"),
        (not_a_stream, "<it> raised TypeError: 'int' object is not iterable"),
        (lambda: None, "<it> takes (), expected (sources, *, tasks_per_step, seed)"),
    ],
)
def test_a_wrong_one_is_found_before_the_run(given: Any, said: str) -> None:
    config = RolloutConfig.model_validate({**FOUR, "sampler": "<it>"})
    with pytest.raises(ConfigError) as caught:
        check_sampler(config, SOURCES, seed=3, given=given)
    assert said in str(caught.value)


def test_one_that_goes_wrong_later_ends_the_run() -> None:
    def sampler(sources: Any, *, tasks_per_step: int, seed: int) -> Iterator[Any]:
        yield [GOOD] * tasks_per_step
        yield [GOOD] * tasks_per_step
        yield [GOOD]

    config = RolloutConfig.model_validate({**FOUR, "sampler": "<it>"})
    check_sampler(config, SOURCES, seed=3, given=sampler)
    with pytest.raises(RunError, match="<it> gave 1 tasks for step 3"):
        steps(config, sampler)


@settings(max_examples=25)
@given(st.sampled_from(["mixture", OWN, STATEFUL]), st.integers(0, 12), st.integers(0, 2**32))
def test_a_resumed_one_goes_on_as_one_that_was_not_stopped(name: str, done: int, seed: int) -> None:
    config = RolloutConfig.model_validate({**FOUR, "sampler": name})
    check_sampler(config, SOURCES, seed=seed)
    whole, resumed = (TaskSampler(config, SOURCES, seed=seed) for _ in range(2))
    for _ in range(done):
        whole.draw()
    resumed.load(done, whole.state(done))
    assert (whole.state(done) == "") is (name != STATEFUL)
    assert [whole.draw() for _ in range(4)] == [resumed.draw() for _ in range(4)]
    assert whole.state(done + 4) == resumed.state(done + 4)


@settings(max_examples=25)
@given(
    st.sampled_from(["mixture", OWN, STATEFUL]),
    st.lists(st.integers(0, 9), max_size=6),
    st.integers(0, 2**32),
)
def test_what_steps_take_beyond_their_own_comes_once(
    name: str, further: list[int], seed: int
) -> None:
    """The lists are one stream, however much each step takes and wherever a run is resumed."""
    config = RolloutConfig.model_validate({**FOUR, "sampler": name})
    whole, lists, resumed = (TaskSampler(config, SOURCES, seed=seed) for _ in range(3))
    taken: list[TaskRef] = []
    for number in further:
        taken += whole.draw() + [whole.draw_one() for _ in range(number)]
    resumed.load(len(further), whole.state(len(further)))
    for sampler in (whole, resumed):
        behind = [*taken, *sampler.draw(), sampler.draw_one()]
        expected = [ref for _ in range(len(behind) // 4 + 1) for ref in lists.draw()]
        assert behind == expected[: len(behind)]
        lists = TaskSampler(config, SOURCES, seed=seed)


class Counts(Iterator[list[TaskRef]]):
    """The next tasks of the first environment; cannot be told to go anywhere but by `load`."""

    def __init__(self, sources: Any, *, tasks_per_step: int, seed: int) -> None:
        self.place = {"number": 0}

    def __next__(self) -> list[TaskRef]:
        self.place["number"] += 4
        return [TaskRef(0, self.place["number"] - i) for i in range(4)]

    def state(self) -> object:
        return self.place

    def load(self, state: Any) -> None:
        self.place = state


def test_a_state_is_of_the_moment_it_was_asked_for() -> None:
    config = RolloutConfig.model_validate({**FOUR, "sampler": "<it>"})
    check_sampler(config, SOURCES, seed=3, given=Counts)
    sampler = TaskSampler(config, SOURCES, seed=3, given=Counts)
    sampler.draw()
    state = sampler.state(1)
    expected = sampler.draw()
    again = TaskSampler(config, SOURCES, seed=3, given=Counts)
    again.load(1, state)
    assert again.draw() == expected


class Forgets(Counts):
    def load(self, state: Any) -> None:
        pass


class NoJson(Counts):
    def state(self) -> object:
        return {1, 2}


class CannotLoad(Counts):
    def load(self, state: Any) -> None:
        raise KeyError("place")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Forgets, "<it> gave other tasks after load(state()), expected those of the next step"),
        (NoJson, "<it>: state raised TypeError: Object of type set is not JSON serializable"),
        (CannotLoad, "<it>: load raised KeyError: 'place'"),
    ],
)
def test_a_state_that_leads_elsewhere_is_found_before_the_run(given: Any, said: str) -> None:
    config = RolloutConfig.model_validate({**FOUR, "sampler": "<it>"})
    with pytest.raises(ConfigError) as caught:
        check_sampler(config, SOURCES, seed=3, given=given)
    assert said in str(caught.value)


def test_a_generator_that_is_no_list_counts_as_one() -> None:
    def sampler(sources: Any, *, tasks_per_step: int, seed: int) -> Iterator[Any]:
        while True:
            yield (TaskRef(0, i) for i in range(tasks_per_step))

    config = RolloutConfig.model_validate({**FOUR, "sampler": "<it>"})
    assert steps(config, sampler) == [[TaskRef(0, i) for i in range(4)]] * 3
