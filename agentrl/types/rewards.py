"""When rewards are equal: one rule for what is trained on and for what is counted."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

N = TypeVar("N", float, NDArray[np.float64])

_ROUNDING = 1e-12


def are_equal(low: N, high: N) -> NDArray[np.bool_]:
    """True where a group's lowest and highest reward differ by rounding only, relative to size."""
    equal: NDArray[np.bool_] = high - low <= _ROUNDING * np.maximum(np.abs(low), np.abs(high))
    return equal
