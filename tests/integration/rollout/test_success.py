"""What counts as a success: by the score alone, by the environment, by the verifier."""

import math
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cli.eval import NO_SUCCESS, render
from agentrl.envs import ToolEnv
from agentrl.errors import ConfigError
from agentrl.orchestration import jobs
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.evaluate import EvalResult
from agentrl.orchestration.load import load_run_config
from agentrl.rollout.metrics import successes
from agentrl.types import Agent, AssistantTurn, EpisodeView, Score, Task
from agentrl.verifiers import ExactNumber, LengthPenalty, Rubric, Verifier, resolve_verifier

TASKS = [Task(prompt=f"Say {n}", answer=n) for n in range(10)]


class Says(ToolEnv):
    """The score is what the agent says: 0.0, 0.1, ... 0.9 over the ten tasks."""

    tasks = {"train": TASKS, "heldout": TASKS}  # noqa: RUF012

    def score(self, answer: str) -> float:
        return float(answer)

    @classmethod
    def expert(cls) -> Agent:
        return Expert()


class SaysWell(Says):
    success_at = 0.8


class Share:
    success_at = 0.5

    def score(self, task: Task, answer: str) -> float:
        return float(answer)


class Expert:
    def act(self, view: EpisodeView) -> AssistantTurn:
        return AssistantTurn(text=str(view.task.answer / 10))


def evaluated(env: type[ToolEnv], verifier: Verifier | None = None) -> EvalResult:
    given = {"env": env} | ({} if verifier is None else {"<it>": verifier})
    objects = Overrides(given=given)
    values = {"env": [{"name": "env"}], "eval.tasks": 10}
    values |= {} if verifier is None else {"verifier": "<it>"}
    config = load_run_config(keywords=values, objects=objects).config
    return jobs.evaluate(config, objects=objects, agent="oracle")[0]


def test_graded_scores_have_no_success_until_something_says_which_are() -> None:
    graded = evaluated(Says)
    assert (dict(graded.pass_at), graded.success, "success" in graded.metrics) == ({}, None, False)
    assert math.isclose(graded.reward, 0.45)
    assert NO_SUCCESS in render(graded)
    assert "pass@1 " not in render(graded)


@pytest.mark.parametrize(
    ("env", "verifier", "success"),
    [
        (SaysWell, None, 0.2),
        (Says, Share(), 0.5),
        (SaysWell, Share(), 0.5),
        (Says, ExactNumber(), 0.1),  # 0.0 is the answer 0; the others are wrong
        (Says, Rubric(long=(LengthPenalty(1), 0.5), share=(Share(), 0.5), success_at=0.4), 0.2),
    ],
)
def test_environment_or_verifier_says_what_a_success_is(
    env: type[ToolEnv], verifier: Verifier | None, success: float
) -> None:
    result = evaluated(env, verifier)
    assert result.success == result.metrics["success"] == pytest.approx(success)


NO_THRESHOLDS = [0, 0.0, -0.5, 1.5, 3, 10**400, math.nan, math.inf, True, "0.5", [0.5]]


@pytest.mark.parametrize("threshold", NO_THRESHOLDS)
def test_a_threshold_that_no_score_can_reach_or_miss_is_refused(threshold: Any) -> None:
    class Odd(Share):
        success_at = threshold

    class OwnScore(Says):
        success_at = threshold

    class ByVerifier(ToolEnv):
        tasks = ({"prompt": "x"},)
        verifier = Share()
        success_at = threshold

    expected = f"declares success_at {threshold!r}; expected a number above 0 and at most 1"
    for refused in (Odd(), Rubric(only=(Share(), 1.0), success_at=threshold)):
        with pytest.raises(ConfigError, match=re.escape(expected)):
            resolve_verifier(refused)
    for env in (OwnScore, ByVerifier):
        with pytest.raises(ConfigError, match=re.escape(f"{env.__name__} {expected}")):
            env()


def test_a_threshold_lies_in_the_range_that_is_declared() -> None:
    class Wide(Says):
        score_range = (-1, 5)
        success_at: float | None = 3

    class Wider(Wide):
        success_at = 5.5

    assert Wide().success_at == 3.0
    with pytest.raises(ConfigError, match="expected a number above -1 and at most 5"):
        Wider()


@given(st.lists(st.sampled_from([0.0, 0.2, 0.1 + 0.2, 1.0, 1.0 - 1e-12]), min_size=1))
def test_success_is_defined_for_zero_and_one_or_by_the_threshold(values: Sequence[float]) -> None:
    episodes: Any = [SimpleNamespace(env="e", outcome=Score(value=value)) for value in values]
    graded = any(0.1 < value < 0.9 for value in values)
    assert successes(episodes, {}) == (None if graded else [value > 0.5 for value in values])
    assert successes(episodes, {"e": 0.3}) == [value > 0.25 for value in values]
