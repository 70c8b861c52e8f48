"""What a run does to its batches, and what of it a resumed one goes on from."""

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from agentrl.errors import ConfigError, RunError
from agentrl.trainer import CostConfig, KlConfig, RewardScaleConfig, TrainerConfig
from agentrl.trainer.algorithms.recipe import BatchRecipe, make_recipe
from agentrl.trainer.protocol import Trainer
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, segment


class Passes:
    """A reference and a policy that differ from what was sampled by so much at every token."""

    def with_outputs(self, batch: Batch, names: Collection[str]) -> Batch:
        shifts = {"reference": 0.25, "proximal": 0.5}
        arrays = {f"{name}_N": shifted(batch, shifts[name]) for name in names}
        return replace(batch, **arrays)  # type: ignore[arg-type]  # each by its name


def shifted(batch: Batch, by: float) -> NDArray[np.float32]:
    return np.where(batch.mask_N, batch.logprobs_N + np.float32(by), 0).astype(np.float32)


PASSES = cast("Trainer", Passes())
SAFE = TrainerConfig.model_validate(
    {
        "algorithm": "safe_grpo",
        "cost": CostConfig(part="harm", limit=0.25),
        "reward": RewardScaleConfig(running=True),
        "kl": KlConfig(coef=0.5, kind="k1", where="reward", target=0.01),
    }
)


def members(number: int) -> Batch:
    parts = [segment([1], [([2, 3], [9])], seed) for seed in range(3)]
    rewards, costs = np.random.default_rng(number).normal(size=(2, 3))
    batch = batch_of(parts, turn_rewards=[(r,) for r in rewards])
    return replace(batch, rewards_E=rewards, parts_E={"harm": costs})


class Counting:
    """Gives its own number of calls as the advantage."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: Batch) -> NDArray[np.float32]:
        self.calls += 1
        return np.where(batch.mask_N, np.float32(self.calls), 0).astype(np.float32)

    def state(self) -> object:
        return {"calls": self.calls}

    def load(self, state: object) -> None:
        self.calls = cast("dict[str, int]", state)["calls"]


def counting() -> BatchRecipe:
    config = TrainerConfig(estimator="<counting>")
    return make_recipe(config, {config.estimator: Counting()}.get)


@pytest.mark.parametrize("make", [counting, lambda: make_recipe(SAFE)])
def test_a_resumed_recipe_has_the_same_bits(make: Callable[[], BatchRecipe]) -> None:
    straight, resumed = make(), make()
    for number in range(3):
        straight.prepare(members(number), PASSES)
    resumed.load(straight.state())
    ours, theirs, anew = (
        [prepared(recipe, number) for number in range(3, 6)]
        for recipe in (straight, resumed, make())
    )
    assert ours == theirs
    assert all(one != other for one, other in zip(ours, anew, strict=True))


def prepared(recipe: BatchRecipe, number: int) -> tuple[object, ...]:
    batch = recipe.prepare(members(number), PASSES)
    assert batch.advantages_N is not None
    return recipe.measure(batch), batch.rewards_E.tolist(), batch.advantages_N.tolist()


@pytest.mark.parametrize("make", [counting, lambda: make_recipe(SAFE)])
def test_a_trial_teaches_nobody(make: Callable[[], BatchRecipe]) -> None:
    recipe = make()
    fresh = recipe.state()
    assert recipe.teaches(members(0))
    assert recipe.state() == fresh
    recipe.prepare(members(0), PASSES)
    assert recipe.state() != fresh
    if recipe.shapings:
        assert make().teaches(replace(members(0), parts_E={}))  # other groups may have them
        equal = replace(members(0), rewards_E=np.ones(3), parts_E={"harm": np.ones(3)})
        assert not recipe.teaches(equal)


def test_the_object_was_tried_and_begins_anew_all_the_same() -> None:
    got = counting().prepare(members(0), PASSES)
    assert got.advantages_N is not None
    assert got.advantages_N.max() == 1


def test_the_score_is_shaped_before_the_penalty() -> None:
    settings = TrainerConfig(
        estimator="reinforce",
        reward=RewardScaleConfig(scale=10.0, clip=1.0),
        kl=KlConfig(coef=2.0, kind="k1", where="reward"),
    )
    batch = replace(members(0), rewards_E=np.array([5.0, -5.0, 0.05]))
    got = make_recipe(settings).prepare(batch, PASSES)
    # Two tokens of 0.25 nats each, from the policy's own logprobs.
    assert got.rewards_E == pytest.approx([0.0, -2.0, -0.5], abs=1e-5)
    assert got.kl_coef == 2.0


def test_the_multiplier_and_the_coefficient_are_metrics() -> None:
    recipe = make_recipe(SAFE)
    found = recipe.measure(recipe.prepare(members(0), PASSES))
    cost = float(members(0).parts_E["harm"].mean())
    assert found["cost"] == pytest.approx(cost)
    assert found["multiplier"] == pytest.approx(np.exp(0.1 * (cost - 0.25)))
    assert found["kl_coef"] == 0.5
    assert not make_recipe(TrainerConfig()).measure(members(0))


@pytest.mark.parametrize(
    ("kl", "needed"),
    [
        (KlConfig(), set[str]()),
        (KlConfig(coef=0.1), {"reference"}),
        (KlConfig(coef=0.1, kind="exact"), set[str]()),
        (KlConfig(coef=0.1, kind="exact", target=0.1), {"reference"}),
        (KlConfig(coef=0.1, kind="k1", where="reward"), {"reference", "proximal"}),
        (KlConfig(coef=0.1, kind="exact", where="reward"), {"reference"}),
    ],
)
def test_each_penalty_takes_the_passes_that_it_needs(kl: KlConfig, needed: set[str]) -> None:
    assert make_recipe(TrainerConfig(kl=kl)).needs - {"group of 2"} == needed


def test_a_state_that_is_no_json_is_refused_before_the_run() -> None:
    class Odd(Counting):
        def state(self) -> object:
            return {1, 2}

    with pytest.raises(ConfigError, match="<odd>: state raised TypeError: Object of type set is"):
        make_recipe(TrainerConfig(estimator="<odd>"), {"<odd>": Odd()}.get)


def test_a_state_that_lacks_something_leaves_it_as_it_is() -> None:
    recipe = make_recipe(SAFE)
    fresh = json.loads(recipe.state())
    recipe.load("")
    recipe.load('{"kl": 0.25}')
    assert json.loads(recipe.state()) == {**fresh, "kl": 0.25}


def test_costs_that_are_missing_are_named() -> None:
    with pytest.raises(RunError, match="no part 'harm', there is none"):
        make_recipe(SAFE).prepare(replace(members(0), parts_E={}), PASSES)
