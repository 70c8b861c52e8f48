"""Preferences: the loss of a reward model, and whether its confidence is what it is worth.

Suffixes: P pairs, B bins.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

NUM_BINS = 10
_CENTRE = 0.01


def bradley_terry(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """The sum over pairs of -log sigmoid(chosen - rejected), and a little for a sum that is not 0.

    Bradley and Terry (Biometrika 39, 1952), as of reward models in arXiv:2203.02155. Scores of 1
    and 0 give log(1 + 1/e) = 0.3133. A model that always scores both alike gives log 2. Both scores
    may move by the same number without any change of that; 0.01 (chosen + rejected)^2
    (arXiv:2312.09244, section 2) keeps them around 0, where a sigmoid of one still says something,
    and does not pull at their difference.
    """
    pull_P = _CENTRE * torch.square(chosen_P + rejected_P)
    return (pull_P - logsigmoid(chosen_P - rejected_P)).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Pairs about which the model is about equally sure."""

    low: float
    """Least confidence."""
    high: float
    pairs: int
    confidence: float
    """Mean probability that the model gives to the answer it scores higher."""
    accuracy: float
    """Share of pairs in which that is the chosen one; a tie counts half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How often a reward model is right, and how often it says it would be."""

    pairs: int
    accuracy: float
    error: float
    """Expected calibration error: mean |confidence - accuracy| of the bins, by their pairs."""
    margin: float
    """Mean score of the chosen answers less that of the rejected."""
    bins: tuple[Bin, ...]
    """Those with pairs, of equal width from 0.5 to 1."""


def calibration(margins_P: NDArray[np.float64]) -> Calibration:
    """From scores of chosen answers less those of the rejected.

    The model gives the answer it scores higher the probability sigmoid(|margin|), from 0.5 to 1.
    Margins of log 4 and -log 4 (confidence 0.8, right once in two) have an error of 0.3
    (arXiv:1706.04599, equation 3).
    """
    confidence_P = 1 / (1 + np.exp(-np.abs(margins_P)))
    right_P = (np.sign(margins_P) + 1) / 2
    at_P = np.minimum(((confidence_P - 0.5) * 2 * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    bins: list[Bin] = []
    for index in np.unique(at_P).tolist():
        of_bin = at_P == index
        bins.append(
            Bin(
                low=0.5 + index / (2 * NUM_BINS),
                high=0.5 + (index + 1) / (2 * NUM_BINS),
                pairs=int(of_bin.sum()),
                confidence=float(confidence_P[of_bin].mean()),
                accuracy=float(right_P[of_bin].mean()),
            )
        )
    return Calibration(
        pairs=len(margins_P),
        accuracy=float(right_P.mean()),
        error=sum(b.pairs * abs(b.confidence - b.accuracy) for b in bins) / len(margins_P),
        margin=float(margins_P.mean()),
        bins=tuple(bins),
    )
