"""What a model's code asks of the attention function that it is given, found by one short pass.

The pass runs with a function and a mask of our own, which note what each layer hands over. So it is
the code that is looked at and not what the model is called: a layer that never asks (a recurrent or
convolutional one), one that brings a mask or a bias of its own, a window, a chunk.

`check_outline` runs it before weights are loaded: one number stands for each weight matrix, and
products are skipped, so it takes memory for a few tokens and milliseconds for a layer, however
large the model is.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from agentrl.engine.local.models.quiet import quiet
from agentrl.engine.local.routing_replay import experts_of, mixtures, routed
from agentrl.errors import ConfigError

_NAME = "agentrl_demands"
_TOKENS = 3
_FARTHEST = 2**20
"""Masks are looked at as far as this."""
_FOREIGN = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What code raises that was not made for what it is asked."""
_NO_MATTER = frozenset(
    [
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "deterministic",
        "dropout",
        "is_causal",
        "layer_idx",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "training",
        "use_cache",
    ]
)
"""Arguments that change nothing for a causal model without dropout, which is asked for apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The shape of keys and values, which is the same in each layer."""

    num_layers: int
    group: int
    """Query heads for each key head."""
    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(slots=True)
class _Asked:
    """What the layers of one pass handed over."""

    shapes: dict[int, Heads] = field(default_factory=dict[int, Heads])
    calls: int = 0
    hidden: set[int] = field(default_factory=set[int])
    """Rows up to these lengths are seen in whole, longer ones not, and not by a window alone."""


_asked: ContextVar[_Asked] = ContextVar("asked")


def measure_heads(model: PreTrainedModel, longest: int) -> Heads:
    """The shape of the model's keys and values.

    Args:
        model: in any mode and precision.
        longest: most tokens of a row.

    Raises:
        ConfigError: the model's code asks for attention that is not computed here.
    """
    name, num_layers = type(model).__name__, int(text_config(model).num_hidden_layers)
    asked = _Asked()
    with _noting_attention_demands(model, asked), foreign_code(model), torch.no_grad():
        ids = torch.arange(_TOKENS, device=model.device)[None]
        model(input_ids=ids, position_ids=ids, use_cache=False, noted=True)
    if asked.calls != num_layers or len(asked.shapes) != num_layers:
        raise ConfigError(
            f"{name} called transformers' attention interface {asked.calls} times, in "
            f"{len(asked.shapes)} of its {num_layers} layers, expected once in each; models with "
            "recurrent, convolutional or other attention layers are not computed here: choose "
            "another model"
        )
    if len(set(asked.shapes.values())) > 1:
        raise ConfigError(
            f"the layers of {name} have keys of different shapes, expected one shape; choose "
            "another model"
        )
    end = min(asked.hidden, default=longest)
    if end < longest:
        raise ConfigError(
            f"{name} hides part of a row of more than {end} tokens by a mask that is no sliding "
            f"window; set engine.context_length to at most {end}"
        )
    _refuse_scaled_queries(model)
    return replace(asked.shapes[0], num_layers=num_layers)


def _refuse_scaled_queries(model: PreTrainedModel) -> None:
    """Llama 4 scales queries by their place in the pass, which is not their place in a row."""
    if any(
        getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", True)
        for module in model.modules()
    ):
        raise ConfigError(
            f"{type(model).__name__} scales queries by how many tokens of a pass are before them, "
            "expected before them in their row; set attn_temperature_tuning to false in its "
            "config.json, which changes nothing below floor_scale tokens"
        )


def text_config(model: PreTrainedModel) -> Any:
    """The part of a model's configuration that speaks of its language model."""
    return model.config.get_text_config(decoder=True)


def context_length(model: PreTrainedModel, asked: int | None = None) -> int:
    """The most tokens of a row: what is asked for, if the model has so many positions.

    Raises:
        ConfigError: neither the model nor anybody else says.
    """
    longest = getattr(text_config(model), "max_position_embeddings", None) or asked
    if not longest:
        raise ConfigError(
            f"the configuration of {type(model).__name__} has no max_position_embeddings; set "
            "engine.context_length"
        )
    return min(asked or longest, longest)


def refuse_arguments(module: nn.Module, mask: Tensor | None, kwargs: Mapping[str, Any]) -> None:
    """Refuse what an attention function got and does not know, unless it changes nothing.

    Raises:
        ConfigError: with the argument's name.
    """
    unknown = [
        name
        for name, value in kwargs.items()
        if value is not None and value is not False and name not in _NO_MATTER
    ]
    if kwargs.get("is_causal") is False:
        unknown.append("is_causal=False")
    if kwargs.get("dropout"):
        unknown.append(f"dropout={kwargs['dropout']}")
    if mask is not None:
        unknown.append("attention_mask")
    if unknown:
        raise ConfigError(
            f"{type(module).__name__} asks for attention with {', '.join(sorted(unknown))}, which "
            "is not computed here; choose a model with causal attention (sliding windows and "
            "sinks are known)"
        )


@contextmanager
def foreign_code(model: PreTrainedModel) -> Generator[None]:
    """A model's own code, whose errors say that it cannot do what is asked of it.

    Raises:
        ConfigError: in their place.
    """
    try:
        yield
    except (ConfigError, torch.OutOfMemoryError):
        raise
    except _FOREIGN as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"{type(model).__name__} cannot compute ids with positions through our attention "
            f"function ({type(error).__name__}: {reason}); choose another model"
        ) from error


@contextmanager
def _noting_attention_demands(model: PreTrainedModel, asked: _Asked) -> Generator[None]:
    token = _asked.set(asked)
    try:
        with quiet(), attending(model, _NAME):
            yield
    finally:
        _asked.reset(token)


@contextmanager
def attending(model: PreTrainedModel, name: str) -> Generator[None]:
    """Let the model attend by the named function inside, and as before afterwards."""
    # transformers offers a public way to set the implementation, none to ask for it.
    before = str(model.config._attn_implementation)  # pyright: ignore[reportPrivateUsage]
    set_attention(model, name)
    try:
        yield
    finally:
        set_attention(model, before)


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Let the model attend by the named function.

    Raises:
        ConfigError: its class cannot.
    """
    try:
        model.set_attn_implementation(name)
    except ValueError as error:
        raise ConfigError(
            f"{type(model).__name__} cannot attend by another function than its own; choose "
            "another model"
        ) from error


def _note_layer_instead_of_attending(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    noted: bool = False,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function that computes nothing."""
    marked = attention_mask is not None and attention_mask.dtype == torch.int64
    refuse_arguments(module, None if marked else attention_mask, kwargs)
    if not noted:
        raise ConfigError(
            f"{type(module).__name__} does not get what its model is called with, so it cannot be "
            "told which tokens are one row; choose another model"
        )
    asked = _asked.get()
    asked.calls += 1
    layer = getattr(module, "layer_idx", None)
    if isinstance(layer, int):
        asked.shapes[layer] = Heads(
            num_layers=0,
            group=query.shape[1] // key.shape[1],
            kv_heads=key.shape[1],
            key_dim=key.shape[-1],
            value_dim=value.shape[-1],
        )
    # A window must be in the mask and in the call, so that both mean the same by it.
    whole = _FARTHEST if attention_mask is None else int(attention_mask.flatten()[0])
    window = sliding_window or _FARTHEST
    if whole != min(window, _FARTHEST):
        asked.hidden.add(min(whole, window))
    return query.new_zeros(*query.shape[:-1], value.shape[-1]).transpose(1, 2), None


def _measure_mask_window(
    *, mask_function: Any, q_length: int, kv_length: int, device: Any, **_: Any
) -> Tensor:
    """In the place of a mask: how long a row may be before the mask hides some of it."""
    zero = torch.zeros((), dtype=torch.int64, device=device)
    if bool(mask_function(zero, zero, zero, zero + 1)):
        raise ConfigError(
            "a mask of the model lets a token see those behind it, expected a causal model; choose "
            "another one"
        )
    rows = torch.arange(_FARTHEST, device=device)
    sees = mask_function(zero, zero, rows, zero).expand(_FARTHEST)
    whole = _FARTHEST if bool(sees.all()) else int((~sees).nonzero()[0])
    return torch.full((1, 1, q_length, kv_length), whole, device=device)


AttentionInterface.register(_NAME, _note_layer_instead_of_attending)
AttentionMaskInterface.register(_NAME, _measure_mask_window)


def check_outline(model: PreTrainedModel, longest: int) -> None:
    """Raise the ConfigError with which engine and trainer will refuse the model for its code.

    What only numbers show is not found.

    Args:
        model: all on `meta`; it gets worthless numbers.
        longest: most tokens of a row.
    """
    with foreign_code(model):
        # Put a view of one number in the place of each parameter; code may write into buffers.
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                value = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                module.register_parameter(name, nn.Parameter(value, requires_grad=False))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, torch.zeros(buffer.shape, dtype=buffer.dtype))
    for block in mixtures(model).values():
        for experts in experts_of(model, block):
            experts.forward = _return_states_unchanged
    with _NoProducts(), routed(model):
        measure_heads(model, context_length(model, longest))


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
