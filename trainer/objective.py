"""What one micro-batch adds to the loss; the same pass serves policy and supervised updates.

Suffixes: N tokens of the batch, K trained tokens of a micro-batch, R rows.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.errors import RunError
from agentrl.trainer.algorithms.kl import PENALTIES, k3
from agentrl.trainer.algorithms.losses import CheckedLoss
from agentrl.trainer.algorithms.token_arrays import token_array_fault
from agentrl.trainer.algorithms.trained_tokens import TrainedTokens, trained_tokens
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.packing import PackedRows
from agentrl.types import Batch


class Objective(Protocol):
    """Turns the logprobs of a micro-batch's trained tokens into a sum."""

    sums: NDArray[np.float64]
    """What it counts as it goes; the trainer adds what the other ranks counted."""
    is_full: bool
    """It reads entropies, or divergences, which `policy_scores` gives if it is asked to."""
    has_exact_penalty: bool
    """It reads divergences from the reference."""

    def active(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the rows have a gradient; the others are only measured."""
        ...

    def loss(self, rows: PackedRows, scores_SK: Tensor) -> Tensor:
        """The weighted sum over the micro-batch's trained tokens.

        `scores_SK` is what `policy_scores` gives.
        """
        ...


class SupervisedObjective:
    """Cross-entropy of the trained tokens, with label smoothing (arXiv:1512.00567, section 7).

    A share `smoothing` of each target is spread evenly over the vocabulary.
    """

    def __init__(self, batch: Batch, smoothing: float = 0.0) -> None:
        self._batch, self._smoothing = batch, smoothing
        self.sums = np.zeros(0)
        self.is_full = self.has_exact_penalty = False

    def active(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """All rows."""
        return np.ones(len(rows), dtype=np.bool_)

    def loss(self, rows: PackedRows, scores_SK: Tensor) -> Tensor:
        """Minus the weighted sum of logprobs under the smoothed targets."""
        smoothed_K = torch.lerp(scores_SK[0], scores_SK[1], self._smoothing)
        assert self._batch.weights_N is not None
        weights_K = torch.from_numpy(self._batch.weights_N[rows.source_K]).to(smoothed_K)
        return -(weights_K * smoothed_K).sum()


class PolicyObjective:
    """The policy loss, the penalty to the reference and the entropy's bonus; counts as it goes."""

    def __init__(
        self,
        batch: Batch,
        policy_loss: CheckedLoss,
        config: TrainerConfig,
    ) -> None:
        config.kl.check()
        self._batch = batch
        advantages_N = batch.advantages_N
        if advantages_N is None:
            raise RunError(
                "the batch has no advantages; call an advantage estimator before the update"
            )
        if fault := token_array_fault(advantages_N, batch):
            raise RunError(f"the advantage estimator {fault}")
        self._advantages_N = advantages_N
        self._policy_loss = policy_loss
        self._config = config
        self._has_penalty = config.kl.coef > 0 and config.kl.where == "loss"
        self._kl_coef = config.kl.coef if batch.kl_coef is None else batch.kl_coef
        self.has_exact_penalty = self._has_penalty and config.kl.kind == "exact"
        self.is_full = self.has_exact_penalty or config.entropy_coef > 0
        self.sums = np.zeros(2 + len(policy_loss.names))

    @property
    def kl_sum(self) -> float:
        """The divergence of all tokens, in nats."""
        return float(self.sums[0])

    @property
    def entropy_sum(self) -> float | None:
        """That of the distributions that the tokens were drawn from; None if nobody asked."""
        return float(self.sums[1]) if self.is_full else None

    def statistics(self, num_tokens: int) -> dict[str, float]:
        """Those of the loss, as means over so many tokens."""
        means = self.sums[2:] / max(1, num_tokens)
        return dict(zip(self._policy_loss.names, means.tolist(), strict=True))

    def active(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Rows with an advantage; all of them where something acts on the others too."""
        acts = self._has_penalty or self._config.entropy_coef > 0
        if acts or self._policy_loss.is_active_everywhere:
            return np.ones(len(rows), dtype=np.bool_)
        advantages = [self._advantages_N[self._batch.row(row)] for row in rows.tolist()]
        return np.array([a.any() for a in advantages], dtype=np.bool_)

    def loss(self, rows: PackedRows, scores_SK: Tensor) -> Tensor:
        """The micro-batch's sum."""
        tokens = trained_tokens(self._batch, rows.source_K, scores_SK[0])
        if rows.cut is not None:
            tokens = replace(tokens, sum_pieces=rows.cut.sum_pieces)
        total, found = self._policy_loss(scores_SK[0], tokens)
        self.sums[2:] += found
        kl_K = self._estimate_divergences(scores_SK, tokens)
        if kl_K is not None:
            self.sums[0] += float(kl_K.detach().sum())
        if kl_K is not None and self._has_penalty:
            total = total + self._kl_coef * (tokens.weights_K * kl_K).sum()
        if self.is_full:
            self.sums[1] += float(scores_SK[2].detach().sum())
        if self._config.entropy_coef:
            bonus = (tokens.weights_K * scores_SK[2]).sum()
            total = total - self._config.entropy_coef * bonus
        return total

    def _estimate_divergences(self, scores_SK: Tensor, tokens: TrainedTokens) -> Tensor | None:
        """[K] The penalty of each token; None without a reference."""
        if self.has_exact_penalty:
            return scores_SK[3]
        if tokens.reference_K is not None:
            return PENALTIES.get(self._config.kl.kind, k3)(scores_SK[0], tokens.reference_K)
        if self._has_penalty:
            raise RunError(
                "trainer.kl.coef is above 0, but the batch has no logprobs of the reference; let "
                "Trainer.with_outputs add them before the update"
            )
        return None
