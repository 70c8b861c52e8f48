"""The engine's model: the trainer's parameters or a copy, and the transaction that updates it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import copy
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.engine.local.attention import ATTENTION
from agentrl.errors import ConfigError, EngineError


def inference_model(model: PreTrainedModel, dtype: torch.dtype, *, share: bool) -> PreTrainedModel:
    """A second set of modules over the model's own parameters, or over a cast copy of them.

    The modules, their buffers (never cast) and the configuration are copies, so that neither the
    attention function nor train/eval mode reaches the model that was given.
    """
    memo: dict[int, nn.Parameter] = {}
    for parameter in model.parameters():
        if not share:
            values = parameter.detach().to(dtype, copy=True)
            memo[id(parameter)] = nn.Parameter(values, requires_grad=False)
        else:
            memo[id(parameter)] = parameter
    ours: PreTrainedModel = copy.deepcopy(model, memo)
    ours.train(False)
    _check_served(ours)
    ours.set_attn_implementation(ATTENTION)
    return ours


def _check_served(model: PreTrainedModel) -> None:
    config = model.config
    plain = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    kinds: set[str] = set(getattr(config, "layer_types", None) or [plain])
    if kinds != {"full_attention"}:
        raise ConfigError(
            f"the local engine serves dense models with full attention, but {config.model_type} "
            f"has layers of kind {', '.join(sorted(kinds))}; use another engine for it"
        )


def update(
    model: nn.Module, theirs: Sequence[tuple[str, Tensor]], *, partial: bool = False
) -> None:
    """Write every named tensor into the model, or none of them.

    A `partial` update may lack parameters, and may name tied ones by their other name too.
    Parameters that are given as they are here (shared ones) are left alone. Nothing is allocated:
    values are cast while they are written in place. Of a model with LoRA adapters these alone are
    given, named as in `adapter_model.safetensors`.
    """
    ours = _parameters(model, partial)
    names = [name for name, _ in theirs]
    _check_names(names, set(names) & set(ours) if partial else set(ours))
    for name, tensor in theirs:
        _check_tensor(name, tensor, ours[name])
    with torch.no_grad():
        for name, tensor in theirs:
            if tensor.data_ptr() != ours[name].data_ptr():
                ours[name].copy_(tensor)


def _parameters(model: nn.Module, partial: bool) -> dict[str, nn.Parameter]:
    named = dict(model.named_parameters(remove_duplicate=not partial))
    if not hasattr(model, "peft_config"):
        return named
    adapters = {name: p for name, p in named.items() if ".lora_" in name}
    return {f"base_model.model.{n.replace('.default.', '.')}": p for n, p in adapters.items()}


def _check_names(names: list[str], expected: set[str]) -> None:
    got = set(names)
    repeated = {name for name, count in Counter(names).items() if count > 1}
    faults = (
        ("lack", expected - got),
        ("hold the unknown", got - expected),
        ("repeat", repeated),
    )
    for what, wrong in faults:
        if wrong:
            raise EngineError(
                f"the new weights {what} {len(wrong)} of {len(expected)} tensors, first "
                f"{min(wrong)}; send every parameter once, under its Hugging Face name"
            )


def _check_tensor(name: str, tensor: Tensor, ours: Tensor) -> None:
    if tensor.shape != ours.shape:
        raise EngineError(
            f"the new weights have {name} of shape {tuple(tensor.shape)}, the engine's has "
            f"{tuple(ours.shape)}; send the full, unsharded tensor of the same model"
        )
    if not tensor.is_floating_point():
        raise EngineError(f"the new weights have {name} as {tensor.dtype}, expected floating point")
    if not torch.isfinite(tensor).all():
        raise EngineError(
            f"the new weights have numbers in {name} that are not finite; the old ones stay"
        )
