"""A cost under a limit: the multiplier, and the advantages that it weighs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from agentrl.errors import RunError
from agentrl.trainer.algorithms.advantages.gae import gae
from agentrl.trainer.algorithms.advantages.group_relative import grpo
from agentrl.trainer.algorithms.advantages.safe import safe, safe_gae
from agentrl.trainer.algorithms.constraint import Constraint, costs_as_rewards
from agentrl.trainer.config import CostConfig
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, segment


def members(rewards: list[float], costs: list[float]) -> Batch:
    """Of one group, with two turns each; the reward is that of the second."""
    parts = [segment([1], [([2], [9]), ([3], [])]) for _ in rewards]
    batch = batch_of(parts, turn_rewards=[(0.0, r) for r in rewards])
    return replace(batch, rewards_E=np.array(rewards), parts_E={"harm": np.array(costs)})


def constrained(batch: Batch, multiplier: float) -> Batch:
    return replace(batch, costs_E=batch.parts_E["harm"], multiplier=multiplier)


def test_the_multiplier_follows_the_cost() -> None:
    constraint = Constraint(CostConfig(part="harm", limit=0.25, rate=0.2))
    first = constraint(members([1, 0], [1.0, 0.5]))
    assert first.costs_E is not None
    assert first.costs_E.tolist() == [1.0, 0.5]
    assert first.multiplier == pytest.approx(math.exp(0.1))
    second = constraint(members([1, 0], [0.0, 0.0]))
    assert second.multiplier == pytest.approx(math.exp(0.1 - 0.2 * math.exp(0.1) * 0.25))


def test_the_multiplier_stays_in_range_and_comes_back() -> None:
    constraint = Constraint(CostConfig(part="harm", limit=1.0, rate=10.0))
    high = [constraint(members([1, 0], [9.0, 9.0])).multiplier for _ in range(9)]
    assert high[-1] == pytest.approx(100)
    low = [constraint(members([1, 0], [0.0, 0.0])).multiplier for _ in range(9)]
    assert low[-1] == pytest.approx(0.01)


def test_it_goes_on_from_its_state_with_the_same_bits() -> None:
    config = CostConfig(part="harm", limit=0.3)
    straight, resumed = Constraint(config), Constraint(config)
    straight(members([1, 0], [1.0, 0.7]))
    resumed.load(straight.state())
    batch = members([1, 0], [0.2, 0.9])
    assert resumed(batch).multiplier == straight(batch).multiplier != 1.0


def test_a_step_in_which_nobody_has_the_part_costs_nothing() -> None:
    constraint = Constraint(CostConfig(part="harm", limit=0.5, rate=1.0))
    constraint(members([1, 0], [0.5, 0.5]))
    harmless = replace(members([1, 0], [0, 0]), parts_E={})
    resumed = Constraint(CostConfig(part="harm", limit=0.5, rate=1.0))
    resumed.load(constraint.state())
    for each in (constraint, resumed):
        got = each(harmless)
        assert got.costs_E is not None
        assert got.costs_E.tolist() == [0.0, 0.0]
        assert got.multiplier == pytest.approx(math.exp(-0.5))


def test_a_part_that_is_not_there_is_named() -> None:
    constraint = Constraint(CostConfig(part="ham"))
    with pytest.raises(RunError, match="scores have no part 'ham', did you mean harm"):
        constraint(members([1, 0], [0, 0]))
    with pytest.raises(RunError, match="the reward of episode 1 in the batch is nan"):
        Constraint(CostConfig(part="harm"))(members([1, 0], [0, math.nan]))


@pytest.mark.parametrize(
    ("multiplier", "expected"),
    [
        (1.0, [0.0, 0.0, 1.0, -1.0]),
        (0.5, [1 / 3, -1 / 3, 1.0, -1.0]),
        (3.0, [-0.5, 0.5, 1.0, -1.0]),
    ],
)
def test_numbers_by_hand(multiplier: float, expected: list[float]) -> None:
    """The first pair pays for what it gains; of the second the better one is cheaper too."""
    batch = constrained(members([1, 0, 1, 0], [1, 0, 0, 1]), multiplier)
    batch = replace(batch, group_E=np.array([0, 0, 1, 1], np.int32))
    assert safe(batch)[batch.mask_N][::2] == pytest.approx(expected, abs=1e-6)


def test_equal_costs_leave_the_rewards_alone() -> None:
    batch = constrained(members([1, 0, 0], [0.4, 0.4, 0.4]), 1.0)
    assert safe(batch) == pytest.approx(grpo(batch) / 2)


def valued(batch: Batch, values: float, costs: float) -> Batch:
    values_N, cost_values_N = (
        np.where(batch.mask_N, x, 0).astype(np.float32) for x in (values, costs)
    )
    return replace(batch, values_N=values_N, cost_values_N=cost_values_N)


def test_costs_have_values_of_their_own() -> None:
    batch = valued(constrained(members([1, 0], [0, 1]), 3.0), 0.5, 0.25)
    got = safe_gae(batch, decay=1.0, scale_by_std=False)[batch.mask_N]
    # Returns less values: 0.5, -0.5; costs: -0.25, 0.75; (0.5 + 0.75) / 4 and (-0.5 - 2.25) / 4.
    assert got == pytest.approx(np.repeat([0.5, -0.5], 2), abs=1e-6)
    plain = gae(batch, decay=0.9, scale_by_std=False)
    free = safe_gae(replace(batch, multiplier=0.0), decay=0.9, scale_by_std=False)
    assert free == pytest.approx(plain, abs=1e-6)


def test_a_cost_is_booked_on_the_last_turn() -> None:
    costs = costs_as_rewards(constrained(members([1, 0], [0.25, 1]), 1.0))
    assert costs.turn_rewards_U is not None
    assert costs.turn_rewards_U.tolist() == [0, 0.25, 0, 1]
    with pytest.raises(RunError, match="no costs"):
        safe(members([1, 0], [0, 1]))
