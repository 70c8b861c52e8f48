"""What the tests let each rank do, and the slow reference that it must equal."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from agentrl.trainer import ClipConfig, RatioBandConfig, TrainerConfig
from agentrl.trainer.fsdp import whole
from agentrl.trainer.micro_batches import split_over_ranks
from agentrl.trainer.packing import trained_rows
from agentrl.trainer.parallel_dims import Ranks
from agentrl.trainer.trainer import LocalTrainer
from agentrl.trainer.updates import StepStats
from agentrl.types import Batch
from agentrl.workers.dispatch import gathered
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


def trained(trainer: LocalTrainer) -> dict[str, nn.Parameter]:
    return {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}


def caught(trainer: LocalTrainer) -> dict[str, Tensor]:
    """Where the gradients come that the optimizer gets."""
    gradients: dict[str, Tensor] = {}

    def catch(*_: object) -> None:
        for name, parameter in trained(trainer).items():
            assert parameter.grad is not None
            gradients[name] = whole(parameter.grad).clone()

    trainer.optimizer.register_step_pre_hook(catch)
    return gradients


@gathered
def update(
    ranks: Ranks, batch: Batch, config: TrainerConfig, dtype: torch.dtype, tied: bool = True
) -> Update:
    """One update of the tiny model; the gradients are those that the optimizer gets."""
    trainer = LocalTrainer(tiny_model(dtype=dtype, tied=tied), config, total_steps=10, ranks=ranks)
    if config.lora.rank:
        fill(trained(trainer))
    gradients = caught(trainer)
    stats = trainer.update(batch)
    plans = split_over_ranks(
        batch, trained_rows(batch), num_ranks=ranks.layout.data, token_budget=1, width=32
    )
    return Update(stats=stats, gradients=gradients, num_rows=sum(map(len, plans[ranks.data_rank])))


@gathered
def steps(
    ranks: Ranks, batches: Sequence[Batch], config: TrainerConfig
) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of each step and the weights at the end."""
    trainer = LocalTrainer(tiny_model(), config, total_steps=len(batches), ranks=ranks)
    losses = [trainer.update(batch).loss for batch in batches]
    weights = {name: whole(p.detach()).clone() for name, p in trainer.model.named_parameters()}
    return losses, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    loss: float
    gradients: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@torch.no_grad()
def fill(adapters: Mapping[str, Tensor]) -> None:
    """Give adapters numbers that tell, since new ones add nothing."""
    generator = torch.Generator().manual_seed(1)
    for name in sorted(adapters):
        tensor = adapters[name]
        numbers = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * 0.1
        if isinstance(tensor, DTensor):
            numbers = distribute_tensor(numbers, tensor.device_mesh, tensor.placements)
        tensor.copy_(numbers)


def adapt(model: nn.Module, rank: int) -> dict[str, Tensor]:
    """Add 2 B A to each linear layer but the head; the adapters by PEFT's names."""
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"}
    adapters: dict[str, Tensor] = {}
    for name, layer in linear.items():
        for part, shape in (("A", (rank, layer.in_features)), ("B", (layer.out_features, rank))):
            adapters[f"{name}.lora_{part}.default.weight"] = layer.weight.new_zeros(shape)
    fill(adapters)
    for name, layer in linear.items():
        a, b = (adapters[f"{name}.lora_{part}.default.weight"].requires_grad_() for part in "AB")
        weight = layer.weight.detach()
        del layer.weight
        layer.weight = weight + 2 * b @ a
    return adapters


def reference(
    batch: Batch, low: float = 0.2, high: float = 0.3, *, tied: bool = True, lora_rank: int = 0
) -> Expected:
    """Loss and gradients of the unsplit batch in float64, token by token."""
    model = tiny_model(dtype=torch.float64, tied=tied)
    leaves = adapt(model, lora_rank) if lora_rank else dict(model.named_parameters())
    loss = plain_loss(model, batch, low, high)
    torch.autograd.backward(loss)
    gradients = {name: t.grad for name, t in leaves.items() if t.grad is not None}
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
