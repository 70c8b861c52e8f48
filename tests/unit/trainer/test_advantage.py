import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from numpy.testing import assert_allclose, assert_array_equal

from agentrl.errors import RunError
from agentrl.trainer import group_advantages
from agentrl.trainer.algorithms.advantage import token_advantages
from agentrl.trainer.algorithms.advantages.group_relative import grpo
from tests.unit.trainer.batches import batch_of, segment


def slow_advantages(rewards: list[float], groups: list[int], scale_by_std: bool) -> list[float]:
    """The definition in plain words."""
    result: list[float] = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        mean = sum(members) / len(members)
        std = (sum((r - mean) ** 2 for r in members) / len(members)) ** 0.5
        result.append((reward - mean) / std if scale_by_std and std > 0 else reward - mean)
    return result


def test_groups_of_two_and_one() -> None:
    got = group_advantages(np.array([1.0, 3.0, 5.0]), np.array([7, 7, 2]))
    assert_array_equal(got, [-1, 1, 0])


def test_without_the_deviation_only_the_mean_is_taken() -> None:
    got = group_advantages(np.array([1.0, 3.0, 5.0]), np.array([7, 7, 2]), scale_by_std=False)
    assert_array_equal(got, [-1, 1, 0])
    got = group_advantages(np.array([0.0, 0.0, 3.0]), np.array([0, 0, 0]), scale_by_std=False)
    assert_array_equal(got, [-1, -1, 2])


def test_members_need_not_be_neighbours() -> None:
    got = group_advantages(np.array([1.0, 0.0, 3.0, 8.0]), np.array([4, 9, 4, 9]))
    assert_array_equal(got, [-1, -1, 1, 1])


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e300, -1e-300, 0.0])
@pytest.mark.parametrize("scale_by_std", [True, False])
def test_equal_rewards_give_exactly_zero(value: float, scale_by_std: bool) -> None:
    rewards = np.full(7, value)
    got = group_advantages(rewards, np.zeros(7, dtype=np.int32), scale_by_std=scale_by_std)
    assert_array_equal(got, 0)


def test_rewards_that_differ_by_rounding_are_equal() -> None:
    got = group_advantages(np.array([0.1 + 0.2, 0.3, 0.3]), np.zeros(3, dtype=np.int32))
    assert_array_equal(got, 0)


@given(
    st_np.arrays(np.float64, st.integers(1, 12), elements=st.integers(-3, 3)),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
    st.booleans(),
)
def test_equals_the_definition(
    rewards_E: "np.ndarray[tuple[int], np.dtype[np.float64]]", groups: list[int], scale: bool
) -> None:
    groups = groups[: len(rewards_E)]
    got = group_advantages(rewards_E, np.array(groups), scale_by_std=scale)
    assert_allclose(got, slow_advantages(rewards_E.tolist(), groups, scale), atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(RunError, match="episode 1 in the batch is"):
        group_advantages(np.array([0.0, bad]), np.array([0, 0]))


def test_one_value_per_trajectory_whatever_its_segments() -> None:
    rows = [segment([1, 2], [([3, 4], [5])]) for _ in range(4)]
    batch = batch_of(rows, episodes=(0, 0, 0, 1))
    batch.rewards_E[:] = (1, 0)
    advantages_N = grpo(batch)
    # Baseline 0.5 and deviation 0.5; four rows' baseline would be 0.75.
    assert_array_equal(advantages_N.reshape(4, 5), [[0, 0, 1, 1, 0]] * 3 + [[0, 0, -1, -1, 0]])


def test_advantages_are_zero_where_nothing_is_trained() -> None:
    batch = batch_of([segment([1, 2, 3], [([4], [5, 6]), ([7], [])])])
    assert_array_equal(token_advantages(batch, np.array([2.5])), [0, 0, 0, 2.5, 0, 0, 2.5])
