"""What a model must be to be trained, and the optimizer over it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import copy
import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import cast

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]
from transformers import PreTrainedModel

from agentrl.engine.local.demands import context_length
from agentrl.errors import ConfigError
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.logprobs import check_model


def check_trainable(
    model: PreTrainedModel, longest: int | None = None, *, low_precision: bool = False
) -> None:
    """Raise ConfigError unless rows of the model are trained as its own code computes them.

    Args:
        model: with float32 weights and without dropout.
        longest: most tokens of a row, if fewer than the model's context.
        low_precision: it computes in fewer bits, and is allowed its rounding.
    """
    refuse_dropout(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"parameter {name} is {parameter.dtype}, expected torch.float32: small updates "
                "vanish in fewer bits; load the model with dtype=torch.float32"
            )
    check_model(model, context_length(model, longest), low_precision=low_precision)


def check_reference(model: PreTrainedModel, longest: int) -> None:
    """Raise ConfigError unless a model of its own can be asked about rows of so many tokens."""
    own = context_length(model, longest)
    if own < longest:
        raise ConfigError(
            f"trainer.reference: the model takes {own:,} tokens, but the policy's episodes may "
            f"have {longest:,}; set engine.context_length to {own}"
        )
    model.requires_grad_(requires_grad=False)
    check_trainable(model, longest)


def refuse_dropout(model: PreTrainedModel) -> None:
    """Raise ConfigError if the model has dropout or jitter; its parameters may be on `meta`."""
    found = _find_dropouts(model)
    if found:
        listed = ", ".join(f"{name}={value:g}" for name, value in list(found.items())[:3])
        keys = ", ".join(_read_dropouts(model.config.to_dict())) or "it"
        raise ConfigError(
            f"the model has dropout or noise ({listed}{', ...' * (len(found) > 3)}), expected "
            "none: the trainer would not compute the distribution that was sampled; set "
            f"{keys} to 0 in the model's config.json"
        )


def make_optimizer(model: nn.Module, config: TrainerConfig) -> torch.optim.Optimizer:
    """AdamW whose weight decay leaves out vectors (norms and biases).

    Raises ConfigError if its state is to be kept in 8 bits and no library does that here.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=betas, fused=True)
    for library in ("bitsandbytes", "torchao"):
        if find_spec(library) is not None:
            kind = import_module(f"{library}.optim").AdamW8bit
            return cast(torch.optim.Optimizer, kind(groups, lr=config.lr, betas=betas))
    raise ConfigError(
        "trainer.optimizer: got adamw8bit, but neither bitsandbytes nor torchao is installed; "
        "install one of them, or use adamw"
    )


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The reference: the weights as they are now, never trained."""
    reference: PreTrainedModel = copy.deepcopy(model)
    for parameter in reference.parameters():
        parameter.requires_grad = False
    return reference


def _find_dropouts(model: PreTrainedModel) -> dict[str, float]:
    """Those that the model has; its config may name some of heads that it has not."""
    settings = _read_dropouts(model.config.to_dict())
    found: dict[str, float] = {}
    modules = cast("Iterator[tuple[str, nn.Module]]", model.named_modules())
    for name, module in modules:
        own = {f"{name}.{key}": value for key, value in _read_dropouts(vars(module)).items()}
        if isinstance(module, _DropoutNd) and module.p != 0:
            own[f"{name}.p"] = module.p
        # What a pass reads of the config by itself.
        read = inspect.unwrap(type(module).forward).__code__.co_names
        found |= own | {f"config.{key}": settings[key] for key in settings.keys() & set(read)}
    return found


def _read_dropouts(settings: Mapping[str, object]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in settings.items()
        if any(part in key for part in ("dropout", "_pdrop", "jitter"))
        and isinstance(value, int | float)
        and value != 0  # also what is no number or below: torch takes neither
    }
