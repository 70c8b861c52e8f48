"""Which advantages the configured algorithm makes of rewards."""

from dataclasses import replace

import numpy as np
import pytest

from agentrl.orchestration.controller import make_estimator
from agentrl.orchestration.load import load_run_config
from agentrl.rollout import make_batch
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
