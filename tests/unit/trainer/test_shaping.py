"""What rewards become before an estimator reads them, and what of it a checkpoint keeps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import RunError
from agentrl.trainer.algorithms.shaping import RewardShaping, RunningMoments, shape_rewards
from agentrl.trainer.config import RewardScaleConfig
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, segment


def episodes(*turn_rewards: tuple[float, ...]) -> Batch:
    parts = [segment([1], [([2], [9])] * len(turns)) for turns in turn_rewards]
    batch = batch_of(parts, turn_rewards=list(turn_rewards))
    return replace(batch, rewards_E=np.array([sum(turns) for turns in turn_rewards]))


def test_numbers_by_hand() -> None:
    batch = replace(episodes((1.0, 4.0), (-3.0,)), greedy_E=np.array([np.nan, 2.0]))
    got = shape_rewards(batch, shift=1.0, factor=0.5, clip=1.5)
    assert got.rewards_E.tolist() == [1.5, -1.5]  # 2 and -2, clipped
    # The factor alone gives 0.5, 2 and -1.5; the rest of each return is on its last turn.
    assert got.turn_rewards_U is not None
    assert got.turn_rewards_U.tolist() == [0.5, 1.0, -1.5]
    assert got.greedy_E is not None
    assert np.isnan(got.greedy_E[0])
    assert got.greedy_E[1] == 0.5
    assert batch.rewards_E.tolist() == [5.0, -3.0]


RETURNS = st.lists(st.floats(-10, 10), min_size=1, max_size=4)


@settings(max_examples=30)
@given(
    episodes_=st.lists(RETURNS.map(tuple), min_size=1, max_size=4),
    shift=st.floats(-3, 3),
    factor=st.floats(0.1, 3),
    clip=st.floats(0.1, 5),
)
def test_turns_still_sum_to_the_return(
    episodes_: list[tuple[float, ...]], shift: float, factor: float, clip: float
) -> None:
    got = shape_rewards(episodes(*episodes_), shift=shift, factor=factor, clip=clip)
    assert got.turn_rewards_U is not None
    assert got.turn_offsets_E1 is not None
    sums = np.add.reduceat(got.turn_rewards_U, got.turn_offsets_E1[:-1])
    assert sums == pytest.approx(got.rewards_E, abs=1e-9)
    assert np.abs(got.rewards_E).max() <= clip


@settings(max_examples=30)
@given(
    steps=st.lists(
        st.lists(st.integers(-(10**6), 10**6).map(lambda n: n / 1000), max_size=5),
        min_size=1,
        max_size=5,
    )
)
def test_the_moments_are_those_of_all_returns_at_once(steps: list[list[float]]) -> None:
    moments = RunningMoments()
    for returns in steps:
        moments.add(np.array(returns))
    seen = [r for returns in steps for r in returns]
    assert moments.num == len(seen)
    if seen:
        assert moments.mean == pytest.approx(np.mean(seen), abs=1e-9)
        spread = float(np.std(seen))
        assert moments.deviation == pytest.approx(spread if spread > 1e-9 else 1.0, rel=1e-6)


def shaped(shaping: RewardShaping, returns: Sequence[float]) -> list[float]:
    return list(map(float, shaping(episodes(*[(r,) for r in returns])).rewards_E))


def test_rewards_are_measured_by_all_that_were_seen() -> None:
    shaping = RewardShaping(RewardScaleConfig(running=True, scale=2.0, clip=2.5))
    assert shaped(shaping, [0.0, 4.0]) == [-2.0, 2.0]  # mean 2, deviation 2
    # With 2, 2 the mean stays and the deviation is the root of 2.
    assert shaped(shaping, [2.0, 2.0]) == pytest.approx([0.0, 0.0])
    assert shaped(shaping, [50.0]) == [2.5]


@pytest.mark.parametrize("reward", [0.0, 0.1, 1e9])
def test_equal_rewards_are_not_blown_up(reward: float) -> None:
    shaping = RewardShaping(RewardScaleConfig(running=True))
    for _ in range(5):
        assert shaped(shaping, [reward] * 3) == pytest.approx([0.0] * 3, abs=1e-6)


def test_it_goes_on_from_its_state_with_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    steps = rng.normal(3, 0.1, (6, 5)).tolist()
    straight, resumed = (RewardShaping(RewardScaleConfig(running=True)) for _ in range(2))
    for returns in steps[:3]:
        shaped(straight, returns)
    resumed.load(orjson.loads(orjson.dumps(straight.state())))
    for returns in steps[3:]:
        assert shaped(resumed, returns) == shaped(straight, returns)
    assert shaped(RewardShaping(RewardScaleConfig(running=True)), steps[3]) != shaped(
        straight, steps[3]
    )


def test_a_reward_that_is_not_finite_does_not_spoil_the_moments() -> None:
    shaping = RewardShaping(RewardScaleConfig(running=True))
    shaped(shaping, [0.0, 1.0])
    before = shaping.state()
    with pytest.raises(RunError, match="the reward of episode 1 in the batch is nan"):
        shaped(shaping, [0.0, float("nan")])
    assert shaping.state() == before
