"""What a policy loss is given, and what it gives.

Suffixes: K trained tokens of a micro-batch, N tokens of the batch, R rows.
"""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.types import Batch


def _keep(sums: Tensor) -> Tensor:
    return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens:
    """What a loss is given beside the policy's logprobs; all of it aligned with them."""

    old_K: Tensor
    """The logprobs that ratios are taken to: those that they were sampled with, or, where a
    correction has factors for the way from there, the proximal ones."""
    advantages_K: Tensor
    weights_K: Tensor
    """What each counts in the sum, by the step's normalisation and its correction."""
    row_K: Tensor
    """The row of the batch that each is in; a row is never spread over micro-batches."""
    source_K: NDArray[np.int64]
    """Where in the flat arrays of the batch each is."""
    batch: Batch
    """The rows of this rank, with their advantages; all of them for a loss that needs them."""
    sum_pieces: Callable[[Tensor], Tensor] = _keep
    """Adds what other ranks have, where each has a piece of the same rows; with its gradient."""

    @property
    def reference_K(self) -> Tensor | None:
        """The reference's logprobs, if the run has one."""
        return self._pick_trained_values(self.batch.reference_N)

    @property
    def proximal_K(self) -> Tensor | None:
        """The trainer's logprobs before the batch's first update, if something needs them."""
        return self._pick_trained_values(self.batch.proximal_N)

    def _pick_trained_values(self, values_N: NDArray[np.float32] | None) -> Tensor | None:
        if values_N is None:
            return None
        return torch.from_numpy(values_N[self.source_K]).to(self.old_K)


Statistics = Mapping[str, float | Tensor]
PolicyLoss = Callable[[Tensor, TrainedTokens], tuple[Tensor, Statistics]]
"""Gives a sum over the tokens, of terms that are multiplied by the tokens' weights.

A statistic is a sum of terms that are not; `metrics.jsonl` has its mean over the step's tokens as
`loss/NAME`.
"""


def trained_tokens(batch: Batch, source_K: NDArray[np.int64], like: Tensor) -> TrainedTokens:
    """What a loss is given, on the device and in the number format of its logprobs."""
    assert batch.advantages_N is not None
    assert batch.weights_N is not None
    row_K = np.searchsorted(batch.offsets_R1, source_K, side="right") - 1
    old_N = batch.logprobs_N if batch.factors_N is None else batch.proximal_N
    assert old_N is not None
    return TrainedTokens(
        old_K=torch.from_numpy(old_N[source_K]).to(like),
        advantages_K=torch.from_numpy(batch.advantages_N[source_K]).to(like),
        weights_K=torch.from_numpy(batch.weights_N[source_K]).to(like),
        row_K=torch.from_numpy(row_K).to(like.device),
        source_K=source_K,
        batch=batch.read_only(),
    )
