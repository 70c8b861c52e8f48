"""Sums that run backwards through time: y_t = x_t + f * y_(t+1), for all trajectories at once.

Returns, advantages and discounted rewards are all of this form. Trajectories are laid side by side
by their ends, and one pass over time takes them all; a window of some columns is turned on its
side, so that each step reads one row of memory:

    a a a a a
      b b b b     windows are taken from the right; those of what has ended already are left out
          c c

Suffixes: K tokens by trajectory, E trajectories, A those that reach into the window, C its columns.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

_COLUMNS = 64


def discounted_sums(
    values_K: NDArray[np.float64],
    lengths_E: NDArray[np.int64],
    factor: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    """[K] For each token the sum of factor^l * x_(t+l) to the end of its trajectory.

    Args:
        values_K: x, one trajectory after the other.
        lengths_E: how long each is; some may be empty.
        factor: one for all, or [E] one for each.
    """
    order = np.argsort(-lengths_E, kind="stable")
    lengths, stops = lengths_E[order], np.cumsum(lengths_E)[order]
    factors = np.broadcast_to(np.asarray(factor, dtype=np.float64), lengths_E.shape)[order]
    # A window of the first trajectory may begin before its first token.
    sums = np.concatenate([np.zeros(_COLUMNS), values_K])
    windows = sliding_window_view(sums, _COLUMNS, writeable=True)
    running = np.zeros(len(order))
    for end in range(0, int(lengths.max(initial=0)), _COLUMNS):
        active = int(np.searchsorted(-lengths, -end, "left"))
        whole = int(np.searchsorted(-lengths, -(end + _COLUMNS), "right"))
        starts_A = stops[:active] - end
        summed_CA = np.ascontiguousarray(windows[starts_A].T)
        running = running[:active]
        for row_A in summed_CA[::-1]:
            running *= factors[:active]
            running += row_A
            row_A[:] = running
        windows[starts_A[:whole]] = summed_CA[:, :whole].T
        for a in range(whole, active):
            own = int(lengths[a]) - end  # what lies before belongs to another
            windows[starts_A[a], -own:] = summed_CA[-own:, a]
    return sums[_COLUMNS:]
