"""The loss of reward models and their calibration, against numbers worked by hand."""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.trainer.algorithms.preference import NUM_BINS, bradley_terry, calibration

MARGINS = st.lists(st.floats(-30, 30), min_size=1, max_size=20).map(np.array)


def test_the_loss_is_that_of_bradley_and_terry() -> None:
    scores = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    loss = bradley_terry(scores[:1], scores[1:])
    torch.autograd.backward(loss)
    assert float(loss.detach()) == pytest.approx(math.log(1 + math.exp(-1)) + 0.01)
    assert scores.grad is not None
    push = 1 / (1 + math.e)  # how likely the model holds the wrong order
    assert scores.grad.tolist() == pytest.approx([-push + 0.02, push + 0.02])


def test_the_pull_to_0_does_not_touch_the_difference() -> None:
    scores = torch.tensor([5.0, 3.0], dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(bradley_terry(scores[:1], scores[1:]))
    assert scores.grad is not None
    assert float(scores.grad[0] - scores.grad[1]) == pytest.approx(-2 / (1 + math.exp(2)))
    assert float(scores.grad.sum()) == pytest.approx(4 * 0.01 * 8)


def test_scores_far_apart_and_no_pairs() -> None:
    far = torch.tensor([-1e4], dtype=torch.float64)
    assert float(bradley_terry(far, -far)) == pytest.approx(2e4)
    assert float(bradley_terry(far[:0], far[:0])) == 0


def test_calibration_by_hand() -> None:
    found = calibration(np.array([math.log(4), -math.log(4), 0.0, math.log(99)]))
    sure = {round(b.low, 2): (b.pairs, round(b.confidence, 6), b.accuracy) for b in found.bins}
    assert sure == {0.5: (1, 0.5, 0.5), 0.8: (2, 0.8, 0.5), 0.95: (1, 0.99, 1.0)}
    assert found.accuracy == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert found.error == pytest.approx((2 * 0.3 + 0.01) / 4)
    assert found.margin == pytest.approx(math.log(99) / 4)


@given(MARGINS)
def test_calibration_is_one_of_pairs_in_any_order(margins: np.ndarray) -> None:
    found = calibration(margins)
    again = calibration(np.sort(margins))
    assert (found.error, found.accuracy) == pytest.approx((again.error, again.accuracy))
    assert sum(b.pairs for b in found.bins) == found.pairs == len(margins)
    assert len(found.bins) <= NUM_BINS
    assert all(b.low - 1e-9 <= b.confidence <= b.high + 1e-9 for b in found.bins)
    assert 0 <= found.error <= 1
    # What was right is wrong where the answers change places; a tie stays one.
    assert calibration(-margins).accuracy == pytest.approx(1 - found.accuracy)
