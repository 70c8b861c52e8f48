"""Which advantages the configured algorithm makes of rewards."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.errors import ConfigError, RunError
from agentrl.orchestration.load import load_run_config
from agentrl.rollout import make_batch
from agentrl.trainer.algorithms.advantages.group_relative import grpo
from agentrl.trainer.algorithms.corrections import make_correction
from agentrl.trainer.algorithms.estimators import make_estimator
from agentrl.trainer.algorithms.made_up import made_up_batch
from agentrl.trainer.algorithms.needs import needs
from agentrl.trainer.algorithms.normalisations import make_normalisation
from agentrl.trainer.config import TrainerConfig
from agentrl.types import Batch


@pytest.fixture
def batch() -> Batch:
    """Four tokens, two trained, in two rows of one group; both episodes succeeded."""
    empty = make_batch([], temperature=1.0)
    return replace(
        empty,
        ids_N=np.arange(4, dtype=np.int32),
        mask_N=np.array([False, True, False, True]),
        offsets_R1=np.array([0, 2, 4]),
        episode_R=np.array([0, 1], dtype=np.int32),
        group_E=np.array([0, 0], dtype=np.int32),
        rewards_E=np.array([1.0, 1.0]),
    )


def test_reinforce_gives_each_trained_token_its_episode_s_reward(batch: Batch) -> None:
    estimate = make_estimator(TrainerConfig(algorithm="reinforce"))
    assert estimate(batch).tolist() == [0.0, 1.0, 0.0, 1.0]
    half = replace(batch, rewards_E=np.array([0.5, -1.0]))
    assert estimate(half).tolist() == [0.0, 0.5, 0.0, -1.0]


def test_grpo_learns_nothing_from_a_group_of_equal_rewards(batch: Batch) -> None:
    estimate = make_estimator(TrainerConfig(algorithm="grpo"))
    assert estimate(batch).tolist() == [0.0, 0.0, 0.0, 0.0]


def test_the_tiny_model_s_recipe_depends_on_the_environment() -> None:
    def algorithm(env: str) -> str:
        return load_run_config(flags=["--env", env]).config.trainer.algorithm

    assert algorithm("calculator") == "reinforce"
    assert algorithm("number_guess") == algorithm("long_haul") == "grpo"


def estimates(result: object) -> Callable[[Batch], Any]:
    return lambda batch: result


class ReadsValues:
    def __call__(self, batch: Batch) -> Any:
        assert batch.values_N is not None
        return batch.values_N * 0


class Raises:
    def __call__(self, batch: Batch) -> Any:
        raise KeyError("reward")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (estimates(np.zeros(3, np.float32)), r"shape \(3,\), expected a float32 array of 20, one"),
        (estimates(np.zeros((20, 1), np.float32)), r"of shape \(20, 1\), expected"),
        (estimates(np.zeros(20)), "an array of float64 of shape"),
        (estimates(np.full(20, np.nan, np.float32)), "gave nan for token 0 of the batch"),
        (estimates([0.0] * 20), "gave a list, expected a float32 array"),
        (estimates(np.ma.zeros(20, np.float32)), "gave a MaskedArray"),
        (estimates(None), "gave a NoneType"),
        (ReadsValues(), "estimator <it> raised AssertionError"),
        (
            Raises(),
            r"<it> raised KeyError: 'reward' \(.*test_estimators\.py, line \d+, in",
        ),
    ],
)
def test_a_wrong_estimator_is_found_before_the_run(given: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        make_estimator(TrainerConfig(estimator="<it>"), given)
    assert str(caught.value).endswith("it was tried on a made-up batch")
    assert "\n" not in str(caught.value)


def test_one_that_goes_wrong_later_ends_the_run(batch: Batch) -> None:
    def estimate(batch: Batch) -> Any:
        return grpo(batch) if batch.num_rows == 5 else np.zeros(7, np.float32)

    made = make_estimator(TrainerConfig(estimator="<mine>"), estimate)
    with pytest.raises(RunError, match=r"<mine> gave .* of shape \(7,\), expected .* of 4, one"):
        made(batch)


def test_an_algorithm_names_an_estimator(batch: Batch) -> None:
    for algorithm, name in (("grpo", "grpo"), ("reinforce", "reinforce"), ("ppo", "gae")):
        preset = make_estimator(TrainerConfig.model_validate({"algorithm": algorithm}))
        named = make_estimator(TrainerConfig(algorithm="ppo", estimator=name))
        made_up = made_up_batch(named.needs)
        assert preset(made_up).tolist() == named(made_up).tolist()
        assert preset(made_up).any()
    own = "agentrl.trainer.algorithms.advantages.reinforce:reinforce"
    assert make_estimator(TrainerConfig(estimator=own))(batch).tolist() == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gae", "estimator gae needs a critic, but trainer.algorithm is grpo; set it to ppo"),
        ("grop", "did you mean grpo?"),
        ("math:pi", "estimator math:pi is of type float, expected f(batch)"),
        ("math:atan2", "estimator math:atan2 takes (y, x, /), expected (batch)"),
    ],
)
def test_a_name_that_will_not_do(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_estimator(TrainerConfig(estimator=name))
    assert said in str(caught.value)


def writes(batch: Batch) -> Any:
    batch.rewards_E[0] = 7.0


@needs("score parts")
def adds(batch: Batch) -> Any:
    np.add(batch.parts_E["one"], 1.0, out=batch.parts_E["one"])


def sorts(batch: Batch) -> Any:
    batch.mask_N.sort()


@pytest.mark.parametrize("write", [writes, adds, sorts])
@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("estimator", make_estimator),
        ("normalise", make_normalisation),
        ("correct", make_correction),
    ],
)
def test_who_writes_into_the_batch_is_refused(
    what: str, make: Callable[..., Any], write: Callable[[Batch], Any]
) -> None:
    config = TrainerConfig.model_validate({what: "<it>"})
    with pytest.raises(ConfigError, match=r"writes into the batch \(.*line \d+, in .*\); let it c"):
        make(config, write)


def test_what_is_read_only_is_no_copy() -> None:
    batch = made_up_batch(("score parts",))
    locked = batch.read_only()
    assert np.shares_memory(locked.rewards_E, batch.rewards_E)
    assert np.shares_memory(locked.parts_E["one"], batch.parts_E["one"])
    with pytest.raises(ValueError, match="read-only"):
        locked.parts_E["one"][0] = 3.0
    batch.rewards_E[0] = 3.0  # it is the batch that may still be written into
    assert locked.rewards_E[0] == 3.0
