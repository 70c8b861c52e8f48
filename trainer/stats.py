"""What one update reports.

Suffix: K trained tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedStats:
    """One supervised update."""

    step: int
    """Optimizer steps taken so far, this one included."""
    loss: float
    """The weighted sum over the trained tokens."""
    grad_norm: float
    """Before clipping; 0 if no gradient was computed."""
    lr: float
    entropy: float
    """Minus the mean policy logprob of the trained tokens, in nats: an estimate by samples."""
    episode_probability: float
    """Mean over episodes of the probability that the policy samples all of its trained tokens."""
    num_trained: int
    num_verified: int
    """Trained tokens whose record was recomputed and agreed, just before the loss."""
    skipped: str | None
    """Why the weights were left as they are; None if they were updated."""
    num_skipped: int = 0
    """Updates that left them so."""
    seconds: float

    @property
    def verified_share(self) -> float:
        """Verified tokens over trained tokens; 1 if there are none."""
        return self.num_verified / self.num_trained if self.num_trained else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A token to which the engine and the trainer give logprobs that are far apart."""

    episode: int
    """Index in the batch."""
    segment: int
    """Index among the segments of the episode."""
    token: int
    """Index in the segment."""
    policy: float
    """The trainer's logprob."""
    behavior: float
    """The engine's."""

    def __str__(self) -> str:
        """Where in the episode it is, and both logprobs."""
        return (
            f"token {self.token} of segment {self.segment}: engine {self.behavior:.4g}, trainer "
            f"{self.policy:.4g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GapAlarm:
    """A step whose gap is far outside what its run has had; it was not trained on."""

    reason: str
    worst: tuple[Suspect, ...]
    """One token of each of the worst episodes."""
    number: int
    """How many alarms the run has had, this one included."""
    final: bool
    """It has had as many as `trainer.max_gap_alarms` allows, so it ends."""


CRITIC_ALONE: Final = "the critic learns alone (trainer.critic.pretrain)"
"""Why the policy is left as it is in the first steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats(SupervisedStats):
    """One step of the policy: over all of its updates, each before it changed the weights."""

    ratio_mean: float
    """Mean importance ratio; 1 if policy and behavior agree."""
    ratio_deviation_mean: float
    """Mean |ratio - 1|."""
    ratio_deviation_max: float
    kl: float
    """Mean divergence from the reference, in nats; 0 without a reference."""
    entropy_exact: float | None = None
    """Mean entropy of what the trained tokens were drawn from, in nats; None if nobody asked."""
    gap_mean: float
    """Mean |policy - behavior| in nats in the first update: the engine/trainer gap, on policy."""
    gap_max: float
    loss_statistics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Those of the policy loss by name, means over the trained tokens."""
    batch_statistics: Mapping[str, float] = field(default_factory=dict[str, float])
    """What was done to the batch before the update, by the names of `metrics.jsonl`."""
    value_loss: float | None = None
    """The critic's, weighed as the policy's is; None without a critic."""
    value_skipped: str | None = None
    """Why the critic was left as it is in one of its updates."""
    value_explained: float | None = None
    """1 less the mean squared error of its values, before the step, over the targets' variance."""
    alarm: GapAlarm | None = None
    """Why the batch must not be trained on."""
    rejected: frozenset[str] = frozenset()
    """Ids of the episodes of which `trainer.correct` left nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioStats:
    """How policy and behavior differ over the trained tokens; zeros and ones if there are none."""

    mean: float = 1.0
    deviation_mean: float = 0.0
    deviation_max: float = 0.0
    gap_mean: float = 0.0
    gap_max: float = 0.0


def ratio_stats(policy_K: NDArray[np.float64], behavior_K: NDArray[np.float64]) -> RatioStats:
    """Statistics of exp(policy - behavior) and of |policy - behavior|."""
    if not len(policy_K):
        return RatioStats()
    gap_K = policy_K - behavior_K
    with np.errstate(over="ignore"):
        ratio_K = np.exp(gap_K)
    deviation_K = np.abs(ratio_K - 1)
    return RatioStats(
        mean=float(ratio_K.mean()),
        deviation_mean=float(deviation_K.mean()),
        deviation_max=float(deviation_K.max()),
        gap_mean=float(np.abs(gap_K).mean()),
        gap_max=float(np.abs(gap_K).max()),
    )
