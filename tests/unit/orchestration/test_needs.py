"""What an algorithm reads of an environment is missed before anything loads, where it can be."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentrl
from agentrl.errors import ConfigError
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.preflight import make_plan
from agentrl.types import Agent, AssistantTurn, EpisodeView, Score, Task


class Says:
    def __init__(self, text: str) -> None:
        self.text = text

    def act(self, view: EpisodeView) -> AssistantTurn:
        return AssistantTurn(text=self.text)


class Plain(agentrl.ToolEnv):
    """One turn, and a score without parts."""

    played: list[str] = []  # noqa: RUF012  # for all instances

    @classmethod
    def make_task(cls, rng: np.random.Generator, split: str) -> Task:
        return Task(prompt=f"Say {rng.integers(1000)}.", answer="yes")

    def score(self, answer: Any) -> Any:
        type(self).played.append(str(answer))
        return float(answer == "yes")

    @classmethod
    def expert(cls) -> Agent | None:
        return Says("yes")


class Parts(Plain):
    def score(self, answer: Any) -> Any:
        return Score(value=1.0, parts={"tests": 1.0})


class Penalised(Plain):
    """Its only part is of answers that no expert gives."""

    def score(self, answer: Any) -> Any:
        return Score(value=0.0, parts={"blank": -1.0}) if not answer.strip() else 1.0


class Turns(Plain):
    def reply(self, text: str) -> str | None:
        self.reward(0.5, "turn")
        return None


class Breaks(Plain):
    def score(self, answer: Any) -> Any:
        raise RuntimeError("no disk")


class Unknown(Plain):
    @classmethod
    def expert(cls) -> Agent | None:
        return None


class Keyed(Plain):
    def state_key(self) -> str | None:
        return "here"


def plan(tmp_path: Path, algorithm: str, *envs: type[agentrl.ToolEnv]) -> None:
    objects = Overrides(given={env.__name__: env for env in envs})
    given = {
        "env": [{"name": env.__name__} for env in envs],
        "runs_dir": str(tmp_path),
        "trainer.algorithm": algorithm,
    }
    make_plan(load_run_config(keywords=given, objects=objects).config, objects)


@pytest.mark.parametrize("envs", [[Plain], [Keyed], [Plain, Keyed]])
def test_score_parts_that_nobody_gives(tmp_path: Path, envs: Sequence[type[Plain]]) -> None:
    with pytest.raises(ConfigError, match=r"gdpo needs score parts, but env .* gives none: let th"):
        plan(tmp_path, "gdpo", *envs)


@pytest.mark.parametrize(
    "envs", [[Parts], [Penalised], [Turns], [Breaks], [Unknown], [Plain, Parts]]
)
def test_score_parts_that_somebody_may_give(tmp_path: Path, envs: Sequence[type[Plain]]) -> None:
    plan(tmp_path, "gdpo", *envs)


def test_state_keys_are_told_by_the_class(tmp_path: Path) -> None:
    Plain.played.clear()
    with pytest.raises(ConfigError, match=r"gigpo needs state keys, but env .* gives none: let th"):
        plan(tmp_path, "gigpo", Parts, Unknown)
    plan(tmp_path, "gigpo", Plain, Keyed)
    plan(tmp_path, "grpo", Plain)
    assert not Plain.played, "an episode was played that tells nothing"
