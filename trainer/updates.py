"""What the updates of a step came to, and how they are summed up for `metrics.jsonl`.

Suffixes: N tokens of a mini-batch, K its trained tokens, S those and the rejected ones.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.critic import CriticStats
from agentrl.trainer.objective import PolicyObjective
from agentrl.trainer.stats import GapAlarm, StepStats, SupervisedStats, ratio_stats
from agentrl.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What the micro-batches of one mini-batch came to."""

    loss: float
    logprobs_N: NDArray[np.float64]
    """The policy's, at the tokens of `used_N`."""
    used_N: NDArray[np.bool_]
    """Trained tokens of rows with a weight."""
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

    batch: Batch
    """The mini-batch."""
    done: Pass
    applied: Applied
    alarm: GapAlarm | None = None
    critic: CriticStats | None = None

    @property
    def policy_K(self) -> NDArray[np.float64]:
        """The policy's logprobs before the update."""
        return self.done.logprobs_N[self.done.used_N]

    @property
    def pairs_2S(self) -> NDArray[np.float64]:
        """[2, S] The same and the engine's, of all that was sampled."""
        policy_N, sampled_N = before_rejection(self.batch, self.done)
        return np.stack([policy_N, self.batch.logprobs_N.astype(np.float64)])[:, sampled_N]

    @property
    def episode_probability(self) -> float:
        """Mean over its episodes of the probability of all that was sampled in each."""
        episode_K = np.repeat(self.batch.episode_R, np.diff(self.batch.offsets_R1))[
            self.done.used_N
        ]
        sums_E = np.bincount(episode_K, weights=self.policy_K)
        used_E = np.bincount(episode_K) > 0
        return float(np.exp(sums_E[used_E]).mean()) if used_E.any() else 0.0


def before_rejection(batch: Batch, done: Pass) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """[N] The policy's logprobs, and where: what a correction rejected tells of the gap as well."""
    rejected_N, proximal_N = batch.rejected_N, batch.proximal_N
    if rejected_N is None or proximal_N is None:
        return done.logprobs_N, done.used_N
    return np.where(rejected_N, proximal_N, done.logprobs_N), done.used_N | rejected_N


def summarise_updates(
    batch: Batch, updates: Sequence[BatchUpdate], *, step: int, num_verified: int, started: float
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
        num_trained=batch.num_trained,
        num_verified=num_verified,
        num_skipped=len(skipped),
        skipped=skipped[-1] if len(skipped) == len(updates) else None,
        seconds=time.perf_counter() - started,
    )


def summarise_policy(
    common: SupervisedStats,
    updates: Sequence[BatchUpdate],
    objectives: Sequence[PolicyObjective],
    explained: float | None,
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
        value_loss=float(np.mean([c.loss for c in critics])) if critics else None,
        value_skipped=next((c.skipped for c in critics if c.skipped is not None), None),
        value_explained=explained if critics else None,
        alarm=updates[-1].alarm,
    )
