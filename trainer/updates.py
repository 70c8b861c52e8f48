"""What the updates of a step came to, how they are summed up, and what is reported of them.

Suffixes: K trained tokens of a mini-batch, S those and the rejected ones.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.algorithms.value_targets import explained_share
from agentrl.trainer.config import TrainerConfig
from agentrl.types import Batch

if TYPE_CHECKING:  # they load torch, which what a step came to does not need
    from agentrl.trainer.critic import CriticStats
    from agentrl.trainer.objective import PolicyObjective
    from agentrl.trainer.sampled_tokens import SampledTokens


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
    gap_by_lag: Mapping[int, float] = field(default_factory=dict[int, float])
    """The mean by how many versions late the tokens are; empty if none is, or nobody says it."""
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
    sent_bytes: int | None = None
    """To ranks elsewhere since the update before, rows included; None without any."""
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
    num_tokens: int = 0


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
        num_tokens=len(gap_K),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What the micro-batches of one mini-batch came to."""

    loss: float
    tokens: "SampledTokens"
    """What was measured, of all ranks."""
    nothing: str | None
    """Why there is no gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of the gradient."""

    grad_norm: float = 0.0
    lr: float
    skipped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUpdate:
    """One of them, taken or skipped."""

    done: Pass
    applied: Applied
    alarm: GapAlarm | None = None
    critic: "CriticStats | None" = None

    @property
    def policy_K(self) -> NDArray[np.float64]:
        """The policy's logprobs before the update, of what was trained on."""
        return self.done.tokens.policy_S[self.done.tokens.used_S]

    @property
    def pairs_2S(self) -> NDArray[np.float64]:
        """[2, S] The same and the engine's, of all that was sampled."""
        return np.stack([self.done.tokens.policy_S, self.done.tokens.behavior_S])

    def gap_by_lag(self, version: int | None) -> dict[int, float]:
        """Mean |policy - behavior| in nats of all that was sampled, if any of it is late."""
        tokens = self.done.tokens
        if version is None:
            return {}
        lags_S = version - tokens.versions_S
        if not lags_S.any():
            return {}
        gaps_S = np.abs(tokens.policy_S - tokens.behavior_S)
        return {lag: float(gaps_S[lags_S == lag].mean()) for lag in np.unique(lags_S).tolist()}

    @property
    def episode_probability(self) -> float:
        """Mean over its episodes of the probability of all that was sampled in each."""
        episode_K = self.done.tokens.episode_S[self.done.tokens.used_S]
        sums_E = np.bincount(episode_K, weights=self.policy_K)
        used_E = np.bincount(episode_K) > 0
        return float(np.exp(sums_E[used_E]).mean()) if used_E.any() else 0.0


def summarise_updates(
    updates: Sequence[BatchUpdate],
    *,
    step: int,
    num_trained: int,
    num_verified: int,
    started: float,
) -> SupervisedStats:
    """Means over the updates, and over all tokens that they saw; skipped if all of them were."""
    policy_K = np.concatenate([update.policy_K for update in updates])
    skipped = [u.applied.skipped for u in updates if u.applied.skipped is not None]
    return SupervisedStats(
        step=step,
        loss=float(np.mean([update.done.loss for update in updates])),
        grad_norm=float(np.mean([update.applied.grad_norm for update in updates])),
        lr=updates[-1].applied.lr,
        entropy=-float(policy_K.mean()) if len(policy_K) else 0.0,
        episode_probability=float(np.mean([update.episode_probability for update in updates])),
        num_trained=num_trained,
        num_verified=num_verified,
        num_skipped=len(skipped),
        skipped=skipped[-1] if len(skipped) == len(updates) else None,
        seconds=time.perf_counter() - started,
    )


def summarise_policy(
    common: SupervisedStats,
    updates: Sequence[BatchUpdate],
    objectives: "Sequence[PolicyObjective]",
    version: int | None,
) -> StepStats:
    """The same with what the objectives of the updates counted, and with the critic's."""
    ratios = ratio_stats(*np.concatenate([update.pairs_2S for update in updates], axis=1))
    first = ratio_stats(*updates[0].pairs_2S)
    num_used = sum(len(update.policy_K) for update in updates)
    counted = objectives[0]
    counted.sums = np.sum([objective.sums for objective in objectives], axis=0)
    critics = [update.critic for update in updates if update.critic is not None]
    return StepStats(
        **asdict(common),
        ratio_mean=ratios.mean,
        ratio_deviation_mean=ratios.deviation_mean,
        ratio_deviation_max=ratios.deviation_max,
        loss_statistics=counted.statistics(num_used),
        kl=counted.kl_sum / max(1, num_used),
        entropy_exact=None
        if counted.entropy_sum is None
        else counted.entropy_sum / max(1, num_used),
        gap_mean=first.gap_mean,
        gap_max=first.gap_max,
        gap_by_lag=updates[0].gap_by_lag(version),
        value_loss=float(np.mean([c.loss for c in critics])) if critics else None,
        value_skipped=next((c.skipped for c in critics if c.skipped is not None), None),
        alarm=updates[-1].alarm,
    )


def explain_nothing_to_train(
    batch: Batch, active_R: NDArray[np.bool_], config: TrainerConfig
) -> str | None:
    """Why no row has a gradient, if none is active."""
    if active_R.any():
        return None
    is_corrected = batch.rejected_N is not None and bool(batch.rejected_N.any())
    if not batch.mask_N.any() and is_corrected:
        by = "async.late masked" if config.correct == "none" else "trainer.correct rejected"
        return f"{by} every token of the batch"
    if not batch.mask_N.any():
        return "no token of the batch is trained"
    advantages_N, weights_N, factors_N = batch.advantages_N, batch.weights_N, batch.factors_N
    if not np.any(weights_N) and (advantages_N is None or advantages_N.any()):
        key = "normalise" if factors_N is None or factors_N.any() else "correct"
        name = getattr(config, key)
        return f"trainer.{key} {name} gives every trained token of the batch the weight 0"
    left = " in what trainer.correct left" if is_corrected else ""
    return f"every advantage is 0{left}, as in groups of equal rewards"


def with_explained(stats: StepStats, batch: Batch, config: TrainerConfig) -> StepStats:
    """The statistics with what the critic, if it learned, had explained before."""
    if stats.value_loss is None:
        return stats
    return replace(stats, value_explained=explained_share(batch, config.critic))
