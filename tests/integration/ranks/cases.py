"""What the tests let each rank do, and the slow reference that it must equal."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from agentrl.trainer import ClipConfig, RatioBandConfig, TrainerConfig
from agentrl.trainer.balance import split_over_ranks
from agentrl.trainer.packing import trained_rows
from agentrl.trainer.ranks import Ranks
from agentrl.trainer.shard import whole
from agentrl.trainer.stats import StepStats
from agentrl.trainer.trainer import Trainer
from agentrl.types import Batch
from tests.unit.trainer.batches import batch_of, plain_loss, random_segments, tiny_model

WIDE = RatioBandConfig(mean=1e9, max=1e9)
CONFIG = TrainerConfig(
    token_budget=60, clip=ClipConfig(low=0.2, high=0.3), max_grad_norm=1e9, ratio_band=WIDE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one rank saw of an update."""

    stats: StepStats
    gradients: Mapping[str, Tensor]
    num_rows: int
    """Rows that this rank computed."""


def update(
    ranks: Ranks, batch: Batch, config: TrainerConfig, dtype: torch.dtype, tied: bool = True
) -> Update:
    """One update of the tiny model; the gradients are those that the optimizer gets."""
    trainer = Trainer(tiny_model(dtype=dtype, tied=tied), config, total_steps=10, ranks=ranks)
    gradients: dict[str, Tensor] = {}

    def catch(*_: object) -> None:
        for name, parameter in trainer.model.named_parameters():
            assert parameter.grad is not None
            gradients[name] = whole(parameter.grad).clone()

    trainer.optimizer.register_step_pre_hook(catch)
    stats = trainer.update(batch)
    plans = split_over_ranks(
        batch, trained_rows(batch), num_ranks=ranks.layout.data, token_budget=1, width=32
    )
    return Update(stats=stats, gradients=gradients, num_rows=sum(map(len, plans[ranks.data_rank])))


def steps(
    ranks: Ranks, batches: Sequence[Batch], config: TrainerConfig
) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of each step and the weights at the end."""
    trainer = Trainer(tiny_model(), config, total_steps=len(batches), ranks=ranks)
    losses = [trainer.update(batch).loss for batch in batches]
    weights = {name: whole(p.detach()).clone() for name, p in trainer.model.named_parameters()}
    return losses, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    loss: float
    gradients: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


def reference(batch: Batch, low: float = 0.2, high: float = 0.3, *, tied: bool = True) -> Expected:
    """Loss and gradients of the unsplit batch in float64, token by token."""
    model = tiny_model(dtype=torch.float64, tied=tied)
    loss = plain_loss(model, batch, low, high)
    torch.autograd.backward(loss)
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return Expected(loss=float(loss.detach()), gradients=gradients)


def ragged(lengths: Sequence[int], seed: int) -> Batch:
    """Random rows; the second has no weight, the third no advantage."""
    rng = np.random.default_rng(seed)
    advantages: list[float] = rng.normal(size=len(lengths)).tolist()
    weights: list[float] = rng.uniform(0.1, 1.1, len(lengths)).tolist()
    if len(lengths) > 3:
        weights[1], advantages[2] = 0.0, 0.0
    segments = random_segments(lengths, seed)
    return batch_of(segments, advantages=advantages, weights=weights, temperature=0.8)
