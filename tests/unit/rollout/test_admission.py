"""Who says what is trained on: the settings, or a policy of a user's that is held to its word."""

from collections.abc import Callable, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.errors import ConfigError, RunError
from agentrl.rollout import Admission, EndedGroup, Judgement, RolloutConfig
from agentrl.rollout.admission import CheckedAdmission, check_admission, num_groups
from agentrl.schedule import Late
from agentrl.types import Task

OWN = f"{Path(__file__).parents[3]}/examples/extending/admission.py:Hard"
TASK = Task(prompt="?")


def ended(*, teaches: bool, episodes: tuple[Any, ...] = ()) -> EndedGroup:
    return EndedGroup(task=TASK, env="env", step=1, episodes=episodes, teaches=lambda: teaches)


def configured(**settings: object) -> RolloutConfig:
    return RolloutConfig.model_validate({"tasks_per_step": 20, **settings})


def checked(
    config: RolloutConfig, given: object = None, *, late: Late = "drop", deterministic: bool = False
) -> CheckedAdmission:
    return CheckedAdmission(config, given, late=late, deterministic=deterministic)


def test_by_default_all_groups_are_kept_none_is_begun_beyond_and_none_is_hurried() -> None:
    policy = checked(configured(), late="wait", deterministic=True)
    assert policy.judge(ended(teaches=False)) == Judgement()
    assert (policy.surplus(1), policy.patience([1.0], 8)) == (0, inf)


def test_the_settings_are_a_policy() -> None:
    policy = checked(configured(refill=3, overprovision=1.15, stragglers=0.25))
    assert policy.judge(ended(teaches=True)) == Judgement()
    assert policy.judge(ended(teaches=False)) == Judgement("flat", replace=True)
    assert policy.surplus(1) == 3
    assert policy.patience([1.0, 5.0, 2.0, 3.0, 4.0, 6.0], 8) == 7.0
    assert num_groups(20, 1.15) == 23


def test_whether_a_group_teaches_is_not_asked_where_it_decides_nothing() -> None:
    def fails() -> bool:
        raise AssertionError("asked")

    group = EndedGroup(task=TASK, env="env", step=1, episodes=(), teaches=fails)
    assert checked(configured()).judge(group) == Judgement()


def test_one_of_one_s_own_may_answer_a_part_of_it() -> None:
    policy = checked(configured(admission=OWN, overprovision=2, stragglers=0.5))

    class Solved:
        reward = 1.0

    assert policy.judge(ended(teaches=True, episodes=(Solved(),))) == Judgement(
        "easy", replace=True
    )
    assert policy.judge(ended(teaches=True)) == Judgement()
    assert (policy.surplus(1), policy.patience([1.0], 2)) == (20, 62.0)


def of(**answers: Callable[..., object]) -> type:
    """A policy with these answers."""
    return type("Mine", (Admission,), dict(answers))


ODD: Any = 3


def gives(answer: object) -> Callable[..., object]:
    def give(*_: object) -> object:
        return answer

    return give


def give_a_number(config: RolloutConfig) -> int:
    return 7


def take_nothing() -> None:
    pass


def raises(*_: object) -> object:
    raise KeyError("difficulty")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (of(surplus=gives(-1)), "<it>: surplus gave -1, expected a number of groups of at"),
        (of(surplus=gives(1.5)), "<it>: surplus gave 1.5, expected a number of groups"),
        (of(patience=gives(nan)), "<it>: patience gave nan, expected seconds of at least 0"),
        (of(patience=gives(None)), "<it>: patience gave None, expected seconds of at least 0"),
        (of(judge=gives(None)), "<it>: judge gave None, expected a Judgement"),
        (of(judge=gives(Judgement("too easy"))), "expected one word to say why, such as flat"),
        (of(judge=gives(Judgement(ODD))), "expected one word to say why"),
        (of(judge=gives(Judgement("", replace=True))), "expected dropped to say why"),
        (of(judge=raises), "<it>: judge raised KeyError: 'difficulty'"),
        (of(__init__=raises), "<it> raised KeyError: 'difficulty'"),
        (give_a_number, "<it> gave a int, expected an Admission; make it a subclass of"),
        (take_nothing, "<it> takes () -> None, expected (config)"),
        (7, "<it> is of type int, expected f(config)"),
    ],
)
def test_a_wrong_one_is_found_before_the_run(given: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_admission(
            checked(configured(admission="<it>"), given), task=TASK, env="env", members=2
        )
    assert said in str(caught.value)


def test_one_that_goes_wrong_later_ends_the_run() -> None:
    def judge(self: Admission, group: EndedGroup) -> object:
        return None if group.episodes else Judgement()

    policy = checked(configured(admission="<it>"), of(judge=judge))
    check_admission(policy, task=TASK, env="env", members=2)
    with pytest.raises(RunError, match="<it>: judge gave None, expected a Judgement"):
        policy.judge(ended(teaches=True, episodes=(7,)))


def test_numbers_of_arrays_are_numbers() -> None:
    def patience(self: Admission, ended_s: Sequence[float], members: int) -> object:
        return np.median(ended_s)

    policy = checked(configured(), of(surplus=lambda *_: np.int64(3), patience=patience))
    assert (policy.surplus(1), policy.patience([4.0], 2)) == (3, 4.0)


def test_what_the_schedule_cannot_do_is_not_asked_of_it() -> None:
    more, hurries = of(surplus=lambda *_: 2), of(patience=lambda *_: 1.0)
    with pytest.raises(RunError, match=r"gave 2, expected 0 with async.late wait, which gives no"):
        checked(configured(), more, late="wait").surplus(1)
    with pytest.raises(RunError, match="gave 2, expected 0 with deterministic"):
        checked(configured(), more, deterministic=True).surplus(1)
    with pytest.raises(RunError, match=r"gave 1.0, expected infinity with deterministic"):
        checked(configured(), hurries, deterministic=True).patience([1.0], 2)
