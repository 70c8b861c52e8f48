"""Each normalisation against its definition, and against what must not matter."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from agentrl.errors import ConfigError, RunError
from agentrl.trainer.algorithms.normalisations import BUILT_IN, make_normalisation
from agentrl.trainer.config import TrainerConfig
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, segment

CONFIG = TrainerConfig(normalise="<mine>")
Part = tuple[int, int, int, int]
"""A row: its group, which of the group's episodes, prompt tokens, trained tokens."""
PART = st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 3), st.integers(0, 4))


def made(parts: list[Part]) -> Batch:
    """A row for each part; one without trained tokens has an answer that nobody sampled."""
    rows = [segment(range(n), [(range(k), [7, 8])] if k else []) for _, _, n, k in parts]
    episode_R = [2 * group + member for group, member, _, _ in parts]
    batch = batch_of(rows, episodes=episode_R)
    group_E = np.arange(len(batch.episode_ids), dtype=np.int32) // 2
    return replace(batch, group_E=group_E, weights_N=None)


def slow_weights(name: str, parts: list[Part]) -> list[float]:
    """[rows] What a token of each row counts, in plain words."""

    def key(i: int, part: Part) -> object:
        keys = {"token_mean": 0, "group_mean": part[0], "episode_mean": part[:2]}
        return keys.get(name, i)

    rows = [(i, part) for i, part in enumerate(parts) if part[3]]
    parts_of = {key(i, p) for i, p in rows}
    result = [0.0] * len(parts)
    for i, p in rows:
        tokens = sum(other[3] for j, other in rows if key(j, other) == key(i, p))
        result[i] = 1 / len(parts_of) / (1024 if name == "sequence_sum" else tokens)
    return result


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=25)
@given(parts=st.lists(PART, min_size=1, max_size=6), data=st.data())
def test_it_is_its_definition_in_any_order_and_with_rows_that_are_padding(
    name: str, parts: list[Part], data: st.DataObject
) -> None:
    parts = data.draw(st.permutations([*parts, (2, 1, 3, 0)]))
    batch = made(parts)
    expected = np.repeat(slow_weights(name, parts), np.diff(batch.offsets_R1)) * batch.mask_N
    assert_allclose(BUILT_IN[name](batch), expected, rtol=1e-6)
    assert BUILT_IN[name](batch).dtype == np.float32


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("token_mean", [1 / 6] * 3),
        ("sequence_mean", [1 / 3, 1 / 6, 1 / 9]),
        ("sequence_sum(length=10)", [1 / 30] * 3),
        ("group_mean", [1 / 6, 1 / 6, 1 / 6]),
        ("episode_mean", [1 / 6, 1 / 6, 1 / 6]),
    ],
)
def test_numbers_by_hand(name: str, weights: list[float]) -> None:
    """An episode of 1 and 2 tokens in two segments, and one of 3 tokens of another task."""
    batch = made([(0, 0, 2, 1), (0, 0, 1, 2), (1, 0, 1, 3)])
    found = make_normalisation(TrainerConfig(normalise=name))(batch)
    rows = [found[batch.row(r)][batch.mask_N[batch.row(r)]] for r in range(3)]
    for row, weight in zip(rows, weights, strict=True):
        assert_allclose(row, weight, rtol=1e-6)


def test_a_batch_in_which_nothing_is_trained_has_no_weights() -> None:
    for name, normalise in BUILT_IN.items():
        assert not normalise(made([(0, 0, 2, 0), (0, 1, 1, 0)])).any(), name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda batch: batch.mask_N, "gave an array of bool of shape (20,), expected a float32"),
        (lambda batch: batch.logprobs_N[:5], "float32 of shape (5,), expected a float32 array"),
        (lambda batch: batch.logprobs_N, "gave -0.5 for token 1 of the batch (episode made-up-"),
        (lambda batch: batch.mask_N / np.float32(0), "gave nan for token 0 of the batch (episode"),
        (lambda batch: np.ones(20, np.float32), "gave 1.0 for token 0 of the batch (episode made-"),
        (lambda batch: 0 * batch.logprobs_N, "gave weights whose sum over the trained tokens is 0"),
        (lambda batch: 1.0, "gave a float, expected a float32 array of 20"),
        (lambda: 1.0, "takes (), expected (batch)"),
        (7, "is of type int, expected f(batch)"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_of_ones_own_is_tried_before_the_run(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_normalisation(CONFIG, given)
    assert said in str(caught.value)


def test_one_that_goes_wrong_later_names_the_episode() -> None:
    def mine(batch: Batch) -> NDArray[np.float32]:
        weights_N = batch.mask_N.astype(np.float32)
        weights_N[-1] = 1.0
        return weights_N

    checked = make_normalisation(CONFIG, mine)
    with pytest.raises(RunError, match=r"<mine> gave 1.0 for token .* \(episode episode-1\), wh"):
        checked(made([(0, 0, 2, 1), (0, 1, 1, 2)]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("token_man", "normalisation token_man is unknown .*, did you mean token_mean"),
        ("sequence_sum(length=0)", "option length: got 0, expected more than 0"),
        ("sequence_sum(length=0.5)", "option length: got 0.5, expected a whole number"),
        ("token_mean(length=5)", "normalisation token_mean has no option length"),
    ],
)
def test_what_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(").replace(")", r"\)")):
        make_normalisation(TrainerConfig(normalise=text))
