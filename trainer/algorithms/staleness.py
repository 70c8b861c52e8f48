"""How old the tokens of a batch are, by the version of the weights that are trained.

Suffixes: N tokens of the batch, K those that are trained.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agentrl.types import Batch


def mask_late(batch: Batch, oldest: int) -> Batch:
    """The batch without its tokens of versions before `oldest`: they count as rejected."""
    late_N: NDArray[np.bool_] = batch.mask_N & (batch.versions_N < oldest)
    if not late_N.any():
        return batch
    rejected_N = late_N if batch.rejected_N is None else late_N | batch.rejected_N
    return replace(batch, mask_N=batch.mask_N & ~late_N, rejected_N=rejected_N)


def lag_metrics(batch: Batch) -> dict[str, float]:
    """How many versions late the trained tokens are: `Batch.version` minus their own.

    `lag/mean`, `lag/p50`, `lag/p90`, `lag/max`; `lag/stale`: the share that is late at all. Empty
    where the version is not said, or nothing is trained.
    """
    if batch.version is None or not batch.mask_N.any():
        return {}
    lags_K = batch.version - batch.versions_N[batch.mask_N].astype(np.int64)
    p50, p90 = np.quantile(lags_K, [0.5, 0.9], method="inverted_cdf").tolist()
    return {
        "lag/mean": float(lags_K.mean()),
        "lag/p50": float(p50),
        "lag/p90": float(p90),
        "lag/max": float(lags_K.max()),
        "lag/stale": float((lags_K > 0).mean()),
    }
