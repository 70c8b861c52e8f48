"""What a model's code asks of attention, found before its weights are loaded.

One number stands for each weight matrix, and products are skipped: the pass takes memory for a few
tokens and milliseconds for a layer, however large the model is.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (parts of torch and transformers are not typed)

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from agentrl.engine.local.demands import context_length, foreign_code, measure_heads
from agentrl.engine.local.routing_replay import experts_of, mixtures, routed


def check_outline(model: PreTrainedModel, longest: int) -> None:
    """Raise the ConfigError with which engine and trainer will refuse the model for its code.

    What only numbers show is not found.

    Args:
        model: all on `meta`; it gets worthless numbers.
        longest: most tokens of a row.
    """
    with foreign_code(model):
        _replace_parameters_by_views(model)
    for block in mixtures(model).values():
        for experts in experts_of(model, block):
            experts.forward = _return_states_unchanged
    with _NoProducts(), routed(model):
        measure_heads(model, context_length(model, longest))


def _replace_parameters_by_views(model: nn.Module) -> None:
    """Put a view of one number in the place of each parameter; code may write into buffers."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            value = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
            module.register_parameter(name, nn.Parameter(value, requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros(buffer.shape, dtype=buffer.dtype))


def _return_states_unchanged(states: Tensor, *_: Any, **__: Any) -> Tensor:
    return states


class _NoProducts(TorchFunctionMode):
    """A linear layer gives zeros: no copy of its matrix is made."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not F.linear:
            return func(*args, **(kwargs or {}))
        states, weight = cast("tuple[Tensor, Tensor]", tuple(args)[:2])
        return states.new_zeros(*states.shape[:-1], len(weight))
