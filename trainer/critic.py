"""The critic of PPO: a value head on a copy of the policy's backbone, with an optimizer of its own.

Where a cost is limited, a second head beside it expects that, learnt in the same way.

Suffixes: H heads, N tokens of the batch, K trained tokens of a micro-batch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.errors import RunError
from agentrl.trainer.algorithms.value_loss import value_loss
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.fsdp import in_pass, prepare, settle, whole
from agentrl.trainer.logprobs import predicting_states
from agentrl.trainer.lora import add_adapters
from agentrl.trainer.micro_batches import pack_micros
from agentrl.trainer.model import make_optimizer
from agentrl.trainer.packing import PackedRows
from agentrl.trainer.parallel_dims import SINGLE, Ranks
from agentrl.trainer.shares import Share


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

    def values(self, share: Share) -> NDArray[np.float32]:
        """[H, N] What each head expects before the trained tokens that this rank computes."""
        values_HN = np.zeros((1 + self._has_cost, share.batch.num_tokens), dtype=np.float32)
        with torch.no_grad():
            for rows in self._pack_own_micro_batches(share):
                values_HN[:, rows.source_K] = self._predict_values(rows).float().cpu().numpy()
        settle(self.model)
        return values_HN

    def update(self, share: Share) -> CriticStats:
        """Regress onto the returns that follow; a gradient that is not finite changes nothing.

        The share has the values that its advantages were estimated with, and targets. Raises
        RunError if as many gradients in a row were not finite as `trainer.max_skipped_steps` allow.
        """
        skipped, loss = None, 0.0
        for _ in range(self._config.critic.updates):
            loss = self._accumulate_gradients(share)
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

    def _count_skipped(self, reason: str) -> None:
        self.num_skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= self._config.max_skipped_steps:
            raise RunError(
                f"{reason}, for {self._skipped_in_a_row} updates in a row; lower trainer.critic.lr "
                "or look at the rewards of the last batches"
            )

    def _accumulate_gradients(self, share: Share) -> float:
        """Gradients of all micro-batches; their loss."""
        batch, total = share.batch, 0.0
        # Of each head, what it said and what it is to say: the second one learns costs.
        learnt = [(batch.values_N, batch.targets_N), (batch.cost_values_N, batch.cost_targets_N)]
        for packed in self._pack_own_micro_batches(share):
            values_HK = self._predict_values(packed)
            losses: list[Tensor] = []
            for values_K, arrays in zip(values_HK, learnt, strict=False):
                old_K, targets_K, weights_K = (
                    torch.from_numpy(each_N[packed.source_K]).to(values_K)
                    for each_N in (*arrays, batch.weights_N)
                    if each_N is not None
                )
                clip = self._config.critic.clip
                losses.append(value_loss(values_K, old_K, targets_K, weights_K, clip=clip))
            loss = torch.stack(losses).sum()
            torch.autograd.backward(loss)
            total += float(loss.detach())
        return float(self._ranks.sum_(np.array([total]))[0])

    def _predict_values(self, rows: PackedRows) -> Tensor:
        return in_pass(self.model, lambda: self.model.forward(rows))

    def _pack_own_micro_batches(self, share: Share) -> Iterator[PackedRows]:
        return pack_micros(share.batch, [*share.micros, *share.measured], self._ranks)
