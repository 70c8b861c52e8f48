from collections import Counter
from itertools import chain, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout import EnvSource, TaskRef, derive_seed, task_stream


def take(sources: list[EnvSource], *, per_step: int, seed: int, steps: int) -> list[TaskRef]:
    stream = task_stream(sources, tasks_per_step=per_step, seed=seed)
    return list(chain.from_iterable(islice(stream, steps)))


def test_a_later_step_is_the_same_however_it_is_reached() -> None:
    sources = [EnvSource(1.0, None), EnvSource(3.0, 7)]
    whole = take(sources, per_step=5, seed=3, steps=20)
    resumed = islice(task_stream(sources, tasks_per_step=5, seed=3), 12, 20)
    assert whole[60:] == list(chain.from_iterable(resumed))


@given(num_tasks=st.integers(1, 20), per_step=st.integers(1, 9), epochs=st.integers(1, 4))
def test_a_finite_set_is_used_once_per_epoch(num_tasks: int, per_step: int, epochs: int) -> None:
    steps = -(-num_tasks * epochs // per_step)
    refs = take([EnvSource(1.0, num_tasks)], per_step=per_step, seed=0, steps=steps)
    counts = Counter(ref.index for ref in refs[: num_tasks * epochs])
    assert counts == dict.fromkeys(range(num_tasks), epochs)


def test_an_endless_set_never_repeats() -> None:
    refs = take([EnvSource(1.0, None)], per_step=8, seed=0, steps=50)
    assert [ref.index for ref in refs] == list(range(400))


def test_environments_come_by_weight() -> None:
    sources = [EnvSource(1.0, None), EnvSource(3.0, None)]
    refs = take(sources, per_step=100, seed=1, steps=20)
    share = sum(ref.env == 1 for ref in refs) / len(refs)
    assert share == pytest.approx(0.75, abs=0.05)


@given(st.lists(st.one_of(st.integers(), st.text()), max_size=4))
def test_seeds_are_63_bits_and_depend_on_every_part(parts: list[int | str]) -> None:
    seed = derive_seed(*parts)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(*parts)
    assert seed != derive_seed(*parts, 0)


def test_seeds_keep_the_parts_apart() -> None:
    assert derive_seed("a", "bc") != derive_seed("ab", "c")
    assert derive_seed(1) != derive_seed("1")
