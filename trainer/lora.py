"""LoRA through PEFT: small trained matrices beside frozen weights (arXiv:2106.09685).

    y = W x + (alpha / rank) B A x        W frozen, B zero at first: training begins at the base

The model stays what it was, with adapters in the place of its linear layers. An engine gets either
W + (alpha / rank) B A under the plain names, made one tensor at a time, or A and B alone under the
names of `adapter_model.safetensors`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch, transformers and peft are typed in part only.

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson
import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from agentrl.config.nearest import nearest
from agentrl.engine.local.models.quiet import quiet
from agentrl.errors import ConfigError
from agentrl.trainer.config import ALL_LINEAR, LoraConfig

_NAME = "default"


def add_adapters(model: PreTrainedModel, config: LoraConfig) -> peft.LoraConfig:
    """Freeze the model and put adapters into it, in float32 or better, in place.

    Returns what `adapter_config.json` holds. Raises ConfigError for a target that matches nothing,
    and for a rank that no layer can use.
    """
    targets = _targets(model, config.targets)
    _check_rank(model, targets, config.rank)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha or 2 * config.rank,
        target_modules=targets,
        task_type=peft.TaskType.CAUSAL_LM,
    )
    with quiet():
        peft.inject_adapter_in_model(settings, model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
    return settings


def adapter_config(folder: Path, config: LoraConfig) -> Mapping[str, object]:
    """The content of `adapter_config.json` for a model's folder, before any weight is loaded."""
    with quiet(), torch.device("meta"):
        kinds: Any = AutoModelForCausalLM
        model: Any = kinds.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
        settings: Any = add_adapters(model, config)
    made: dict[str, object] = settings.to_dict()
    plain: dict[str, object] = orjson.loads(orjson.dumps(made, default=sorted))
    return plain


def adapter_settings(model: nn.Module) -> peft.LoraConfig | None:
    """What `adapter_config.json` holds; None for a model without adapters."""
    settings: dict[str, peft.LoraConfig] = getattr(model, "peft_config", {})
    return settings.get(_NAME)


def adapted_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """The layers that have an adapter, by the names of the layers that they replace."""
    return {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}


@contextmanager
def adapters_off(model: nn.Module) -> Generator[None]:
    """The base alone inside: the reference of a KL penalty, without a copy."""
    layers = adapted_layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """A `WeightSource` of the adapters alone, as `adapter_model.safetensors` names them."""

    model: nn.Module

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """A and B of each adapted layer."""
        for name, layer in adapted_layers(self.model).items():
            for part in ("lora_A", "lora_B"):
                weight: Tensor = getattr(layer, part)[_NAME].weight
                yield f"base_model.model.{name}.{part}.weight", weight.detach()


def merged(layer: LoraLayer, leaf: str, values: Tensor) -> Tensor:
    """A parameter of an adapted layer with what its adapter adds; shards stay shards."""
    if leaf != "weight":
        return values
    with torch.no_grad():
        delta: Tensor = layer.get_delta_weight(_NAME)  # type: ignore[attr-defined]  # of each kind
        if isinstance(values, DTensor):
            delta = cast(DTensor, delta).redistribute(placements=values.placements)
        return values + delta.to(values.dtype)


def _targets(model: PreTrainedModel, targets: str) -> list[str]:
    """The names of layers, without what tells one block's from another's, that get adapters."""
    head: object = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers'
    linear = [n for n, m in _modules(model) if isinstance(m, nn.Linear) and m is not head]
    short = {name.rpartition(".")[2] for name in linear}
    if targets == ALL_LINEAR:
        return sorted(short)
    chosen = [target.strip() for target in targets.split(",")]
    for target in chosen:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            raise ConfigError(
                f"trainer.lora.targets: {target!r} matches no linear layer of "
                f"{type(model).__name__}, {nearest(target, [ALL_LINEAR, *short])}"
            )
    return chosen


def _check_rank(model: nn.Module, targets: Sequence[str], rank: int) -> None:
    """A product of two matrices has no more ranks than the smaller side of its layer."""
    sides = [
        min(layer.in_features, layer.out_features)
        for name, layer in _modules(model)
        if isinstance(layer, nn.Linear) and any(f".{name}".endswith(f".{t}") for t in targets)
    ]
    if rank > max(sides):
        raise ConfigError(
            f"trainer.lora.rank: got {rank}, expected at most {max(sides)}: no layer that gets an "
            "adapter has more"
        )


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield from model.named_modules()
