"""Objects given in Python: what the configuration has of them, and that they are what is used."""

import functools
import threading
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config.references import load_reference
from agentrl.errors import ConfigError
from agentrl.orchestration.preflight import make_plan
from agentrl.trainer.algorithms.advantages.group_relative import grpo
from agentrl.trainer.algorithms.estimators import make_estimator
from agentrl.trainer.algorithms.losses import make_loss
from agentrl.trainer.algorithms.policy_losses.clip import clip
from agentrl.trainer.algorithms.rollout_correction import tis
from agentrl.trainer.config import TrainerConfig
from agentrl.types import Batch
from agentrl.verifiers import ExactNumber


def estimate(batch: Batch) -> Any:
    return grpo(batch)


class Watches(agentrl.Observer):
    """Nothing."""


def given(tmp_path: Path, **parts: Any) -> agentrl.Run:
    return agentrl.Run("calculator", runs_dir=str(tmp_path), **parts)


def test_an_object_is_recorded_by_what_finds_it(tmp_path: Path) -> None:
    run = given(tmp_path, estimator=estimate, verifier=ExactNumber, observers=[Watches])
    config = run.config
    assert load_reference(str(config.trainer.estimator), "estimator") is estimate
    assert config.verifier == "agentrl.verifiers.compare:ExactNumber"
    assert load_reference(config.observers[0], "observer") is Watches


@pytest.mark.parametrize("env", [None, 3, Watches(), estimate])
def test_what_is_no_environment_is_refused_in_a_sentence(env: Any) -> None:
    with pytest.raises(ConfigError, match=r"env: got .*, expected a name, path/file.py:Name"):
        agentrl.train(env)


def test_options_that_an_object_has_are_not_those_of_the_configuration() -> None:
    clip_keys = {"clip": {"high": 0.5}}
    mine = functools.partial(clip, low=0.1)
    with pytest.raises(ConfigError, match=r"trainer.clip.high: got 0.5 with loss .*does not read"):
        agentrl.train("calculator", loss=mine, trainer=clip_keys)
    read = make_loss(TrainerConfig.model_validate(clip_keys), clip)
    assert read.clip_keys == {"low", "high"}


def test_one_that_nothing_finds_is_named_and_asked_for(tmp_path: Path) -> None:
    watches = [Watches(), Watches()]
    partial = functools.partial(estimate)
    config = given(tmp_path, estimator=partial, verifier=ExactNumber(), observers=watches).config
    assert (config.trainer.estimator, config.verifier) == ("<partial>", "<ExactNumber>")
    assert config.observers == ("<Watches>", "<Watches 2>")
    with pytest.raises(ConfigError, match="verifier <ExactNumber> was an object in Python"):
        make_plan(config, train=False, scripted=True)


def test_a_section_may_hold_objects(tmp_path: Path) -> None:
    corrections = {"correct": tis, "lr": 0.5}
    run = given(tmp_path, trainer=corrections)
    assert run.config.trainer.correct == "agentrl.trainer.algorithms.rollout_correction:tis"
    assert run.config.trainer.lr == 0.5
    own = given(tmp_path, trainer={"correct": functools.partial(tis, cap=3.0)}).config.trainer
    assert own.correct == "<partial>"
    assert corrections["correct"] is tis
    named = given(tmp_path, trainer={"correct": "tis(cap=3)"}).config.trainer
    assert named.correct == "tis(cap=3)"


class Locked:
    """A loss that no other process can have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, logprobs_K: Any, tokens: Any) -> Any:
        return -(tokens.weights_K * logprobs_K).sum(), {}


def test_a_loss_that_cannot_travel_is_refused_before_ranks_start(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"loss <Locked> cannot be sent to the trainer's ranks \("),
        given(tmp_path, loss=Locked(), trainer={"ranks": 2}),
    ):
        pass


def test_names_and_references_stay_what_they_are(tmp_path: Path) -> None:
    config = given(tmp_path, estimator="reinforce", tool_format="hermes", sampler="mixture").config
    assert (config.trainer.estimator, config.tool_format) == ("reinforce", "hermes")
    assert make_estimator(config.trainer).label == "estimator reinforce"
    with pytest.raises(ConfigError, match="expected text"):
        given(tmp_path, estimator={"name": "grpo"})
