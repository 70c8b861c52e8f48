"""pass@k and its 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054
BOOTSTRAP_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(successes: int, trials: int) -> Interval:
    """The score interval of a proportion (Wilson 1927); [0, 1] without trials."""
    if trials == 0:
        return Interval(0.0, 0.0, 1.0)
    p, z2 = successes / trials, Z95 * Z95
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return Interval(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)))


def pass_at_k(successes: int, samples: int, k: int) -> float:
    """The chance that k of the samples hold a success, unbiased (arXiv:2107.03374, eq. 1)."""
    if samples - successes < k:
        return 1.0
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def pass_interval(successes_per_task: Sequence[tuple[int, int]], k: int) -> Interval:
    """pass@k over tasks given as (successes, samples); those with fewer than k are left out.

    One sample per task: Wilson. More: a seeded bootstrap over tasks, since samples of one task
    are alike.
    """
    usable = [(s, n) for s, n in successes_per_task if n >= k]
    if all(n == 1 for _, n in usable):
        return wilson(sum(s for s, _ in usable), len(usable))
    values = np.array([pass_at_k(s, n, k) for s, n in usable])
    rng = np.random.default_rng(0)
    draws = rng.choice(values, size=(BOOTSTRAP_DRAWS, len(values))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))
