"""What one micro-batch adds to the loss; the same pass serves policy and supervised updates.

Suffixes: N tokens of the batch, K trained tokens of a micro-batch, R rows.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.errors import RunError
from agentrl.trainer.algorithms.kl import PENALTIES
from agentrl.trainer.algorithms.losses import CheckedLoss
from agentrl.trainer.algorithms.token_arrays import token_array_fault
from agentrl.trainer.algorithms.trained_tokens import trained_tokens
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.packing import PackedRows
from agentrl.types import Batch


class Objective(Protocol):
    """Turns the logprobs of a micro-batch's trained tokens into a sum."""

    sums: NDArray[np.float64]
    """What it counts as it goes; the trainer adds what the other ranks counted."""

    def active(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the rows have a gradient; the others are only measured."""
        ...

    def loss(self, rows: PackedRows, scores_2K: Tensor) -> Tensor:
        """The weighted sum over the micro-batch's trained tokens.

        `scores_2K` is what `policy_scores` gives.
        """
        ...


class SupervisedObjective:
    """Cross-entropy of the trained tokens, with label smoothing (arXiv:1512.00567, section 7).

    A share `smoothing` of each target is spread evenly over the vocabulary.
    """

    def __init__(self, batch: Batch, smoothing: float = 0.0) -> None:
        self._batch, self._smoothing = batch, smoothing
        self.sums = np.zeros(0)

    def active(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """All rows."""
        return np.ones(len(rows), dtype=np.bool_)

    def loss(self, rows: PackedRows, scores_2K: Tensor) -> Tensor:
        """Minus the weighted sum of logprobs under the smoothed targets."""
        smoothed_K = torch.lerp(scores_2K[0], scores_2K[1], self._smoothing)
        assert self._batch.weights_N is not None
        weights_K = torch.from_numpy(self._batch.weights_N[rows.source_K]).to(smoothed_K)
        return -(weights_K * smoothed_K).sum()


class PolicyObjective:
    """The policy loss and the KL penalty; counts as it goes."""

    def __init__(
        self,
        batch: Batch,
        policy_loss: CheckedLoss,
        config: TrainerConfig,
    ) -> None:
        self._batch = batch
        self._advantages_N = _checked_advantages(batch)
        self._policy_loss = policy_loss
        self._config = config
        self._has_penalty = config.kl.coef > 0
        self.sums = np.zeros(1 + len(policy_loss.names))

    @property
    def kl_sum(self) -> float:
        """The penalty of all tokens, in nats."""
        return float(self.sums[0])

    def statistics(self, num_tokens: int) -> dict[str, float]:
        """Those of the loss, as means over so many tokens."""
        means = self.sums[1:] / max(1, num_tokens)
        return dict(zip(self._policy_loss.names, means.tolist(), strict=True))

    def active(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Rows with an advantage; all of them where loss or penalty act on the others too."""
        if self._has_penalty or self._policy_loss.is_active_everywhere:
            return np.ones(len(rows), dtype=np.bool_)
        advantages = [self._advantages_N[self._batch.row(row)] for row in rows.tolist()]
        return np.array([a.any() for a in advantages], dtype=np.bool_)

    def loss(self, rows: PackedRows, scores_2K: Tensor) -> Tensor:
        """The micro-batch's sum."""
        logprobs_K = scores_2K[0]
        tokens = trained_tokens(self._batch, rows.source_K, logprobs_K)
        total, found = self._policy_loss(logprobs_K, tokens)
        self.sums[1:] += found
        if not self._has_penalty:
            return total
        if tokens.reference_K is None:
            raise RunError(
                "trainer.kl.coef is above 0, but the batch has no logprobs of the reference; let "
                "Trainer.with_reference add them before the update"
            )
        kl_K = PENALTIES[self._config.kl.kind](logprobs_K, tokens.reference_K)
        self.sums[0] += float(kl_K.detach().sum())
        return total + self._config.kl.coef * (tokens.weights_K * kl_K).sum()


def _checked_advantages(batch: Batch) -> NDArray[np.float32]:
    advantages_N = batch.advantages_N
    if advantages_N is None:
        raise RunError("the batch has no advantages; call an advantage estimator before the update")
    if fault := token_array_fault(advantages_N, batch):
        raise RunError(f"the advantage estimator {fault}")
    return advantages_N
