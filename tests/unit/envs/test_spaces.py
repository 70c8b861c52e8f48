import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs import TextSpace, TokenSpace

SPACES = [TextSpace(), TokenSpace(7)]


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_samples_are_inside_and_follow_the_seed(space: Any) -> None:
    space.seed(3)
    first = [space.sample() for _ in range(20)]
    space.seed(3)
    assert [space.sample() for _ in range(20)] == first
    assert all(x in space for x in first)
    assert len(set(first)) > 1
    assert space.from_jsonable(space.to_jsonable(first)) == first


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_copies_are_equal(space: Any) -> None:
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space
    assert hash(copy) == hash(space)


def test_different_spaces_differ() -> None:
    assert TokenSpace(7) != TokenSpace(8)
    assert TextSpace() != TokenSpace(7)
    with pytest.raises(ValueError, match="vocab_size is 0"):
        TokenSpace(0)


@given(st.text())
def test_every_text_is_text(text: str) -> None:
    assert text in TextSpace()


@pytest.mark.parametrize("value", [None, 1, b"a", ["a"]])
def test_nothing_else_is_text(value: object) -> None:
    assert value not in TextSpace()


@pytest.mark.parametrize("ids", [(), (0, 6), [3], np.array([1, 2]), np.array([], dtype=np.int32)])
def test_ids_below_the_size_are_tokens(ids: Any) -> None:
    assert ids in TokenSpace(7)


@pytest.mark.parametrize(
    "ids", [(7,), (-1,), (1.0,), (True,), "12", 3, np.array([1.0]), np.array([[1]]), np.array([9])]
)
def test_nothing_else_is_tokens(ids: Any) -> None:
    assert ids not in TokenSpace(7)
