"""pass@k and its 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(successes: float, trials: float) -> Interval:
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

    Samples of one task are alike, so they count as fewer: Wilson's interval for as many independent
    trials as have the variance seen between tasks, at least one per task.
    """
    usable = [(s, n) for s, n in successes_per_task if n >= k]
    if not usable:
        return wilson(0, 0)
    values = np.array([pass_at_k(s, n, k) for s, n in usable])
    mean, tasks = float(values.mean()), len(usable)
    most = sum(n for _, n in usable) / k
    variance = float(values.var(ddof=1)) / tasks if tasks > 1 else 0.0
    if mean in (0.0, 1.0):
        trials = float(tasks)
    else:
        trials = min(max(mean * (1 - mean) / max(variance, 1e-12), tasks), most)
    return wilson(mean * trials, trials)
