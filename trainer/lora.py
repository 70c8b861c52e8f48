"""LoRA through PEFT: small trained matrices beside frozen weights (arXiv:2106.09685).

    y = W x + (alpha / rank) B A x        W frozen, B zero at first: training begins at the base

The model stays what it was, with adapters in the place of its linear layers. An engine gets either
W + (alpha / rank) B A under the plain names, made one tensor at a time, or A and B alone under the
names of `adapter_model.safetensors`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch, transformers and peft are typed in part only.

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import orjson
import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from agentrl.engine.local.models.quiet import quiet
from agentrl.errors import ConfigError
from agentrl.trainer.config import ALL_LINEAR, LoraConfig
from agentrl.weights.experts import by_expert

_NAME = "default"


def add_adapters(model: PreTrainedModel, config: LoraConfig) -> peft.LoraConfig:
    """Freeze the model and put adapters into it, in float32 or better, in place.

    Returns what `adapter_config.json` holds. Raises ConfigError for a target that matches nothing,
    and for a rank that no layer can use.
    """
    targets = _choose_layers_to_adapt(model, config.targets)
    _check_lora_rank(model, targets, config.rank)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha or 2 * config.rank,
        target_modules=targets,
        # Modules that are called like a target and are no linear layers, such as some routers.
        exclude_modules=[
            name
            for name, module in _walk_modules(model)
            if _is_target_layer(name, targets) and not _is_plain_linear_layer(module)
        ]
        or None,
        task_type=peft.TaskType.CAUSAL_LM,
    )
    # Of a mixture that it knows PEFT takes `gate_proj` for a part of the stacked experts, and
    # leaves out layers of that name. It knows none that comes without its configuration.
    parts: Any = nn.ModuleDict(dict(model.named_children()))
    with quiet():
        peft.inject_adapter_in_model(settings, parts)
    cast(Any, model).peft_config = parts.peft_config
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
    return settings


def adapter_config(
    folder: Path, config: LoraConfig, *, served: bool = False
) -> Mapping[str, object]:
    """The content of `adapter_config.json` for a model's folder, before any weight is loaded.

    Raises ConfigError, beside what `add_adapters` does, for an adapter to be `served` by another
    program that would put it elsewhere.
    """
    model, settings = _make_lora_on_meta(folder, config)
    taken = parts_of_experts(model, settings.target_modules or ()) if served else ()
    if taken:
        raise ConfigError(
            f"trainer.lora.publish: got adapter with adapters on {', '.join(sorted(taken))}, which "
            f"SGLang takes for parts of the stacked experts of {type(model).__name__} too; use "
            "merged, or name other layers in trainer.lora.targets"
        )
    made: dict[str, object] = cast(Any, settings).to_dict()
    plain: dict[str, object] = orjson.loads(orjson.dumps(made, default=sorted))
    return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What the adapters of a model reach."""

    text: str
    """One sentence: how much is trained, and every matrix without an adapter."""
    experts: bool
    """Experts are among those, although all linear layers were asked for."""


def adapter_reach(folder: Path, config: LoraConfig) -> Reach:
    """What a run with these adapters trains and what stays frozen, before any weight is loaded."""
    model, _ = _make_lora_on_meta(folder, config)
    sizes = {n: p.numel() for n, p in model.named_parameters() if p.ndim > 1 and ".lora_" not in n}
    frozen = {n: size for n, size in sizes.items() if not n.endswith(".base_layer.weight")}
    stacks = [n for n in frozen if model.get_parameter(n).ndim > 2]
    kinds: dict[str, int] = {}
    for name, size in frozen.items():
        kind = re.sub(r"(?<=\.)\d+(?=\.)", "*", name.removesuffix(".weight"))
        kinds[kind] = kinds.get(kind, 0) + size
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    listed = ", ".join(f"{kind} ({size:,})" for kind, size in kinds.items())
    why = "; experts that are stacked in one tensor get no adapter" if stacks else ""
    return Reach(
        text=(
            f"LoRA trains {trained:,} weights, in adapters on {len(sizes) - len(frozen)} of "
            f"{len(sizes)} matrices; {sum(frozen.values()):,} of their {sum(sizes.values()):,} "
            f"weights have none: {listed or 'nothing'}{why}"
        ),
        experts=bool(stacks) and config.targets == ALL_LINEAR,
    )


def parts_of_experts(model: nn.Module, targets: Iterable[str]) -> set[str]:
    """Those of the targets that are called like a part of stacked experts, whatever they mean."""
    stacked = ((n, p.shape) for n, p in model.named_parameters() if p.ndim > 2)
    parts = {part for name, shape in stacked for part, _ in by_expert(name, shape)}
    leaves = {part.removesuffix(".weight").rpartition(".")[2] for part in parts}
    return {target for target in targets if target.rpartition(".")[2] in leaves}


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


def _make_lora_on_meta(folder: Path, config: LoraConfig) -> tuple[PreTrainedModel, peft.LoraConfig]:
    with quiet(), torch.device("meta"):
        kinds: Any = AutoModelForCausalLM
        model: Any = kinds.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
        return model, add_adapters(model, config)


def _choose_layers_to_adapt(model: PreTrainedModel, targets: str) -> list[str]:
    """The names of layers, without what tells one block's from another's, that get adapters."""
    head: object = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers'
    linear = [n for n, m in _walk_modules(model) if _is_plain_linear_layer(m) and m is not head]
    short = sorted({name.rpartition(".")[2] for name in linear})
    if not short:
        raise ConfigError(
            f"trainer.lora.rank: {type(model).__name__} has no linear layer that can get an "
            "adapter; set it to 0 to train all weights"
        )
    if targets == ALL_LINEAR:
        return short
    chosen = [target.strip() for target in targets.split(",")]
    for target in chosen:
        if not any(_is_target_layer(name, [target]) for name in linear):
            why = _explain_no_adapter(model, target, short)
            raise ConfigError(
                f"trainer.lora.targets: {target!r} matches no linear layer of "
                f"{type(model).__name__}{why}; expected {ALL_LINEAR} or some of {', '.join(short)}"
            )
    return chosen


def _explain_no_adapter(model: nn.Module, target: str, layers: Sequence[str]) -> str:
    """Why a name that the model has gets no adapter, or the layer that it may have meant."""
    stacks = {n: p.shape for n, p in model.named_parameters() if p.ndim > 2}
    for name, shape in stacks.items():
        parts = [part.removesuffix(".weight") for part, _ in by_expert(name, shape)]
        if any(_is_target_layer(n, [target]) for n in (name.rpartition(".")[0], name, *parts)):
            return f": it is part of {name}, experts that are stacked and get no adapter"
    for name, _ in _walk_modules(model):
        if name and _is_target_layer(name, [target]):
            return f": {name} gets no adapter"
    close = get_close_matches(target, layers, n=1)
    return f", did you mean {close[0]}?" if close else ""


def _is_target_layer(name: str, targets: Sequence[str]) -> bool:
    return any(f".{name}".endswith(f".{target}") for target in targets)


def _is_plain_linear_layer(module: nn.Module) -> bool:
    """One that gives its product, not a router that is one and gives a choice."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def _check_lora_rank(model: nn.Module, targets: Sequence[str], rank: int) -> None:
    """A product of two matrices has no more ranks than the smaller side of its layer."""
    sides = [
        min(layer.in_features, layer.out_features)
        for name, layer in _walk_modules(model)
        if isinstance(layer, nn.Linear)
        and _is_plain_linear_layer(layer)
        and _is_target_layer(name, targets)
    ]
    if rank > max(sides):
        raise ConfigError(
            f"trainer.lora.rank: got {rank}, expected at most {max(sides)}: no layer that gets an "
            "adapter has more"
        )


def _walk_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield from model.named_modules()
