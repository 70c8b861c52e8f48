"""What a correction did to a batch, in numbers for `metrics.jsonl`.

Suffixes: N tokens of all rows, K those that were trained before the correction.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from agentrl.trainer.algorithms.rollout_correction import count_by_episode, log_ratios
from agentrl.types import Batch

_CHANGED: Final = 0.01
"""By how much a factor is off 1 where a token counts as corrected."""
_QUANTILES: Final = {"p1": 0.01, "p50": 0.5, "p99": 0.99}
_LARGEST: Final = 20.0
"""Nats: beyond e^20 a ratio says no more."""


def correction_metrics(batch: Batch) -> dict[str, float]:
    """Shares of what was trained before, and the ratios' quantiles by the age of the weights.

    `correct/corrected`: tokens with a factor that is off 1 by more than a hundredth, the rejected
    ones included; `correct/rejected`; `correct/effective`: the effective sample size, (sum f)^2 /
    (n sum f^2) for factors f, 0 where rejected; `correct/rejected_episodes`;
    `correct/late0_ratio_p50`: the median of proximal over behavior among tokens of the newest
    version in the batch, late1 of the one before. Empty without a correction, or if nothing was
    trained.
    """
    rejected_N = batch.rejected_N
    if rejected_N is None or not (rejected_N | batch.mask_N).any():
        return {}
    before_N = batch.mask_N | rejected_N
    factors_N = batch.mask_N if batch.factors_N is None else batch.factors_N
    factors_K = factors_N[before_N].astype(np.float64)
    squares = float(np.dot(factors_K, factors_K))
    before_E, kept_E = count_by_episode(batch, before_N), count_by_episode(batch, batch.mask_N)
    found = {
        "corrected": np.count_nonzero(np.abs(factors_K - 1) > _CHANGED) / len(factors_K),
        "rejected": np.count_nonzero(rejected_N) / len(factors_K),
        "effective": factors_K.sum() ** 2 / (len(factors_K) * squares) if squares else 0.0,
        "rejected_episodes": 1 - np.count_nonzero(kept_E) / np.count_nonzero(before_E),
    }
    shares = {f"correct/{name}": float(value) for name, value in found.items()}
    return shares | _measure_ratio_quantiles_by_lag(replace(batch, mask_N=before_N))


def _measure_ratio_quantiles_by_lag(batch: Batch) -> dict[str, float]:
    """Those of the ratios of all tokens in the mask, by how many versions late they are."""
    if batch.proximal_N is None:
        return {}
    logs_K, versions_K = log_ratios(batch)[batch.mask_N], batch.versions_N[batch.mask_N]
    newest, shares = int(versions_K.max()), list(_QUANTILES.values())
    found: dict[str, float] = {}
    for version in np.unique(versions_K).tolist():
        # Each is one of the tokens', so that those of the logs are those of the ratios.
        logs = np.quantile(logs_K[versions_K == version], shares, method="inverted_cdf")
        for name, value in zip(_QUANTILES, logs.tolist(), strict=True):
            ratio = math.exp(min(_LARGEST, value))
            found[f"correct/late{newest - version}_ratio_{name}"] = ratio
    return found
