"""The correction that a configuration names: found, tried on a made-up batch, checked each time.

What it did is measured for `metrics.jsonl`. Suffixes: N tokens of all rows, E episodes, K the
tokens that were trained before the correction.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from agentrl.config.seams import Seam
from agentrl.errors import RunError
from agentrl.trainer.algorithms.made_up import made_up_batch, trial
from agentrl.trainer.algorithms.needs import needs_of
from agentrl.trainer.algorithms.options import resolve_function
from agentrl.trainer.algorithms.rollout_correction import (
    count_by_episode,
    decoupled,
    icepop,
    log_ratios,
    mis,
    reject_k1,
    reject_k3,
    sequence_mis,
    sequence_tis,
    tis,
)
from agentrl.trainer.algorithms.token_arrays import call_on_batch, weights_fault
from agentrl.trainer.config import TrainerConfig
from agentrl.types import Batch

Correction = Callable[[Batch], Batch]
"""Gives the batch with less of its mask, with factors on the loss weights, or with both."""


def none(batch: Batch) -> Batch:
    """Nothing is corrected."""
    return batch


_SURE: Final = -0.01
"""Nats: no engine that rounds gives 0 for a token that the trainer thinks less likely."""
BUILT_IN: Final[Mapping[str, Correction]] = {
    "decoupled": decoupled,
    "tis": tis,
    "mis": mis,
    "icepop": icepop,
    "sequence_tis": sequence_tis,
    "sequence_mis": sequence_mis,
    "reject_k1": reject_k1,
    "reject_k3": reject_k3,
}


@dataclass(frozen=True, slots=True)
class CheckedCorrection:
    """A correction of which mask and factors are taken, and checked each time."""

    label: str
    function: Correction

    @property
    def needs(self) -> tuple[str, ...]:
        """What it declares."""
        return needs_of(self.function)

    def __call__(self, batch: Batch) -> Batch:
        """The corrected batch; raises RunError if it cannot be corrected, or was not."""
        _require_sampled_logprobs(self.label, batch)
        found = call_on_batch(self.label, self.function, batch)
        if not isinstance(found, Batch):
            raise RunError(f"{self.label} gave a {type(found).__name__}, expected a batch")
        if fault := _find_mask_fault(found.mask_N, batch):
            raise RunError(f"{self.label} gave {fault}")
        if found.factors_N is not None and (fault := weights_fault(found.factors_N, found)):
            raise RunError(f"{self.label}: as factors it {fault}")
        if found.factors_N is not None and batch.proximal_N is None:
            raise RunError(
                f"{self.label} gave factors for the way to the proximal policy, whose logprobs the "
                'batch does not have; declare it by @needs("proximal")'
            )
        rejected_N = batch.mask_N & ~found.mask_N
        if batch.rejected_N is not None:
            rejected_N |= batch.rejected_N
        return replace(batch, mask_N=found.mask_N, factors_N=found.factors_N, rejected_N=rejected_N)


def make_correction(config: TrainerConfig, given: object = None) -> CheckedCorrection | None:
    """The configured correction, tried on a made-up batch; `given` is it where it is an object.

    None if nothing is corrected.

    Raises:
        ConfigError: there is none of that name, or what it gives is not what it has to be.
    """
    seam = Seam("correction", {"none": none, **BUILT_IN}, "agentrl.corrections")
    label, function = resolve_function(seam, config.correct, given, "batch")
    if function is none:
        return None
    checked = CheckedCorrection(label, cast("Correction", function))
    with trial():
        checked(made_up_batch(checked.needs))
    return checked


def are_rejected(batch: Batch) -> NDArray[np.bool_]:
    """[E] Which episodes a correction left nothing of."""
    if batch.rejected_N is None:
        return np.zeros(len(batch.rewards_E), dtype=np.bool_)
    kept_E = count_by_episode(batch, batch.mask_N)
    alone_E: NDArray[np.bool_] = (kept_E == 0) & (count_by_episode(batch, batch.rejected_N) > 0)
    return alone_E


def leave_out_rejected(batch: Batch) -> Batch:
    """The batch as an estimator may see it: what is rejected as a whole belongs to no group.

    Such an episode has a group of its own, so that no mean, deviation or baseline counts it. One
    that had no trained token to begin with stays in its group.
    """
    alone_E = are_rejected(batch)
    new_E = batch.group_E.max(initial=0) + np.cumsum(alone_E)
    return replace(batch, group_E=np.where(alone_E, new_E, batch.group_E).astype(np.int32))


def _require_sampled_logprobs(label: str, batch: Batch) -> None:
    """Refuse a batch that does not say with which probabilities it was sampled."""
    if not batch.temperature > 0:
        raise RunError(
            f"{label}: the batch was sampled at temperature {batch.temperature:g}, expected above "
            "0; greedy samples have no ratio to correct"
        )
    behavior, proximal_N = batch.logprobs_N[batch.mask_N], batch.proximal_N
    if proximal_N is None:
        return
    wrong = np.flatnonzero(np.isnan(proximal_N))
    if len(wrong):
        raise RunError(
            f"{label}: the trainer's logprob of {_name_token(batch, int(wrong[0]))} is nan; its "
            "weights are no longer finite: go back to an earlier checkpoint and lower trainer.lr"
        )
    # A policy that is sure of all tokens has logprobs of 0 too, but then so has the trainer.
    if len(behavior) and not behavior.any() and proximal_N.min() < _SURE:
        raise RunError(
            f"{label}: the engine gave a logprob of 0 for all of the {len(behavior)} tokens, so "
            "nothing says how they were sampled; use an engine that gives logprobs"
        )


def _find_mask_fault(found_N: object, batch: Batch) -> str | None:
    if not isinstance(found_N, np.ndarray):
        return f"a mask of type {type(found_N).__name__}, expected a bool array"
    mask_N = cast("NDArray[np.bool_]", found_N)
    if mask_N.shape != batch.mask_N.shape or mask_N.dtype != np.bool_:
        return (
            f"a mask of {mask_N.dtype} of shape {mask_N.shape}, expected a bool array of "
            f"{batch.num_tokens}, one for each token of the batch"
        )
    added = np.flatnonzero(mask_N & ~batch.mask_N)
    if len(added):
        return f"a mask that trains {_name_token(batch, int(added[0]))}, which was not trained"
    return None


def _name_token(batch: Batch, token: int) -> str:
    row = int(np.searchsorted(batch.offsets_R1, token, side="right")) - 1
    episode = batch.episode_ids[int(batch.episode_R[row])]
    return f"token {token - int(batch.offsets_R1[row])} of a segment of episode {episode}"


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
    `correct/late0_ratio_p50`: the median of proximal over behavior among tokens of the version that
    is trained, or of the newest one if the batch does not say it, late1 of the one before. Empty
    without a correction, or if nothing was trained.
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
    newest = int(versions_K.max()) if batch.version is None else batch.version
    shares = list(_QUANTILES.values())
    found: dict[str, float] = {}
    for version in np.unique(versions_K).tolist():
        # Each is one of the tokens', so that those of the logs are those of the ratios.
        logs = np.quantile(logs_K[versions_K == version], shares, method="inverted_cdf")
        for name, value in zip(_QUANTILES, logs.tolist(), strict=True):
            ratio = math.exp(min(_LARGEST, value))
            found[f"correct/late{newest - version}_ratio_{name}"] = ratio
    return found
