"""What an environment may return from `score`, and what a task may be made of."""

from typing import Any

import numpy as np
import pytest

from agentrl.envs.scoring import to_score
from agentrl.errors import EnvironmentFault
from agentrl.types import Task


@pytest.mark.parametrize(
    ("value", "score"), [(True, 1.0), (np.bool_(False), 0.0), (np.float32(0.5), 0.5), (2, 2.0)]
)
def test_numbers_and_truth_values_of_numpy_too_are_scores(value: object, score: float) -> None:
    assert to_score(value).value == score


@pytest.mark.parametrize("value", [None, "1", b"1", [1.0], 10**400])
def test_anything_else_is_the_environments_fault(value: object) -> None:
    with pytest.raises(EnvironmentFault, match="score returned"):
        to_score(value)


@pytest.mark.parametrize("prompt", [5, None, b"text", ["text"]])
def test_a_prompt_of_another_type_is_named(prompt: Any) -> None:
    with pytest.raises(TypeError, match=f"prompt is of type {type(prompt).__name__}"):
        Task(prompt=prompt)


def test_data_may_have_keys_of_several_types() -> None:
    assert Task(prompt="a", data={5: 1, "a": 2}).id == Task(prompt="a", data={"a": 2, 5: 1}).id  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
