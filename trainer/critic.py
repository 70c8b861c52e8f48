"""The critic of PPO: a value head on a copy of the policy's backbone, with an optimizer of its own.

Where a cost is limited, a second head beside it expects that, learnt in the same way.

Suffixes: H heads, N tokens of the batch, K trained tokens of a micro-batch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.errors import RunError
from agentrl.trainer.algorithms.advantages.gae import gae_sums
from agentrl.trainer.algorithms.constraint import costs_as_rewards
from agentrl.trainer.algorithms.trajectories import Trajectories
from agentrl.trainer.algorithms.value_loss import value_loss
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.fsdp import in_pass, prepare, settle, whole
from agentrl.trainer.logprobs import predicting_states
from agentrl.trainer.lora import add_adapters
from agentrl.trainer.micro_batches import micro_batches
from agentrl.trainer.model import make_optimizer
from agentrl.trainer.packing import PackedRows, trained_rows
from agentrl.trainer.parallel_dims import SINGLE, Ranks
from agentrl.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticStats:
    """One update of the critic."""

    loss: float
    """Half the clipped squared error, weighed as the policy's loss is, in the last pass."""
    skipped: str | None = None
    """Why it was left as it is in one of its updates; None if it learned in all of them."""


class ValueModel(nn.Module):
    """A backbone and linear heads that begin at 0."""

    def __init__(self, backbone: PreTrainedModel, num_heads: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.config.hidden_size, num_heads, device=backbone.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, rows: PackedRows) -> Tensor:
        """[H, K] What each head says of the state before each trained token."""
        states_KD = predicting_states(self.backbone, rows)
        values_KH: Tensor = self.head(states_KD.to(self.head.weight.dtype))
        return values_KH.T.clone()  # FSDP waits for the gradient of what is no view


class Critic:
    """Says what return (and what cost) is still to come, and learns it."""

    def __init__(
        self, model: PreTrainedModel, config: TrainerConfig, ranks: Ranks = SINGLE
    ) -> None:
        """Copy the backbone of `model`, which has no adapters yet; with LoRA the copy gets some."""
        self._config = config
        backbone = cast(PreTrainedModel, copy.deepcopy(model.base_model))
        if config.lora.rank:
            add_adapters(backbone, config.lora)
        self._has_cost = bool(config.cost.part)
        self.model = ValueModel(backbone, 1 + self._has_cost)
        prepare(self.model, config, ranks)
        self._ranks = ranks
        self.optimizer = make_optimizer(
            self.model, config.model_copy(update={"lr": config.critic.lr})
        )
        self.num_skipped = 0
        """Updates whose gradient was not finite."""
        self._skipped_in_a_row = 0

    def with_values(self, batch: Batch) -> Batch:
        """The batch with the value of the state before each trained token, and the cost's."""
        values_HN = np.zeros((1 + self._has_cost, batch.num_tokens), dtype=np.float32)
        with torch.no_grad():
            for rows in self._pack_own_micro_batches(batch, trained_rows(batch)):
                values_HN[:, rows.source_K] = self._predict_values(rows).float().cpu().numpy()
        settle(self.model)
        values_HN = self._ranks.sum_(values_HN)
        costs_N = values_HN[1] if self._has_cost else None
        return replace(batch, values_N=values_HN[0], cost_values_N=costs_N)

    def update(self, batch: Batch) -> CriticStats:
        """Regress onto the returns that follow; a gradient that is not finite changes nothing.

        The batch has the values that its advantages were estimated with. Raises RunError if as many
        gradients in a row were not finite as `trainer.max_skipped_steps` allows.
        """
        # What the second head learns stands in a batch as rewards and values do.
        learnt = [batch, *([costs_as_rewards(batch)] if self._has_cost else [])]
        targets_HN = [self._find_targets(part)[1] for part in learnt]
        skipped, loss = None, 0.0
        for _ in range(self._config.critic.updates):
            loss = self._accumulate_gradients(learnt, targets_HN)
            most = self._config.critic.max_grad_norm
            norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), most))
            is_finite = math.isfinite(loss) and bool(torch.isfinite(norm))
            if is_finite:
                self.optimizer.step()
                self._skipped_in_a_row = 0
            self.optimizer.zero_grad(set_to_none=True)
            if not is_finite:
                skipped = f"the critic's loss is {loss} and its gradient norm {norm}, not finite"
                self._count_skipped(skipped)
        return CriticStats(loss=loss, skipped=skipped)

    def explained(self, batch: Batch) -> float:
        """1 less the mean squared error of the batch's values over its targets' variance."""
        sums_K, targets_N = self._find_targets(batch)
        spread = float(targets_N[batch.mask_N].var())
        return 1 - float((sums_K**2).mean()) / spread if spread > 0 else 0.0

    def _find_targets(self, batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """[K] By how much the values miss their targets, by trajectory, and [N] the targets."""
        settings = self._config.critic
        assert batch.values_N is not None
        tokens = Trajectories.of(batch)
        sums_K = gae_sums(tokens, discount=settings.discount, decay=settings.target_decay)
        return sums_K, tokens.put(sums_K + batch.values_N[tokens.source])

    def _count_skipped(self, reason: str) -> None:
        self.num_skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= self._config.max_skipped_steps:
            raise RunError(
                f"{reason}, for {self._skipped_in_a_row} updates in a row; lower trainer.critic.lr "
                "or look at the rewards of the last batches"
            )

    def _accumulate_gradients(
        self, learnt: Sequence[Batch], targets_HN: Sequence[NDArray[np.float32]]
    ) -> float:
        """Gradients of all micro-batches; their loss."""
        total, batch = 0.0, learnt[0]
        for packed in self._pack_own_micro_batches(batch, trained_rows(batch)):
            values_HK = self._predict_values(packed)
            heads = zip(values_HK, learnt, targets_HN, strict=True)
            share = torch.stack([self._compute_head_loss(packed, *head) for head in heads]).sum()
            torch.autograd.backward(share)
            total += float(share.detach())
        return float(self._ranks.sum_(np.array([total]))[0])

    def _compute_head_loss(
        self, packed: PackedRows, values_K: Tensor, batch: Batch, targets_N: NDArray[np.float32]
    ) -> Tensor:
        assert batch.values_N is not None
        assert batch.weights_N is not None
        old, targets, weights = (
            torch.from_numpy(each_N[packed.source_K]).to(values_K)
            for each_N in (batch.values_N, targets_N, batch.weights_N)
        )
        return value_loss(values_K, old, targets, weights, clip=self._config.critic.clip)

    def _predict_values(self, rows: PackedRows) -> Tensor:
        return in_pass(self.model, lambda: self.model.forward(rows))

    def _pack_own_micro_batches(
        self, batch: Batch, rows: NDArray[np.int64]
    ) -> Iterator[PackedRows]:
        return micro_batches(
            batch,
            rows,
            token_budget=self._config.token_budget,
            width=int(self.model.backbone.config.hidden_size),
            ranks=self._ranks,
        )
