"""How a model is laid out and computed: sharded, in which precision, what is kept for backward.

    prepare(model)   layers checkpointed -> sharded over the ranks -> one way to run a pass
    in_pass(model)   runs a function of the model's parts in that way

The passes of the trainer call the model's parts one by one. FSDP knows a model's own `forward`
only, so each pass runs as one more forward method of it, and whatever else belongs around a pass
(autocast, activations in host memory) is put around it there.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from agentrl.engine.local.demands import attending
from agentrl.errors import ConfigError
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.parallel_dims import Ranks

T = TypeVar("T")

_PASS = "agentrl_pass"
_FLOAT32_HEAD = "agentrl_float32_head"


def prepare(model: nn.Module, config: TrainerConfig, ranks: Ranks) -> None:
    """Lay the model out as the settings say, in place; its parameters may be on `meta`."""
    body = next(m for m in model.modules() if isinstance(m, PreTrainedModel))
    blocks = list(layers(body))
    if config.liger:
        use_liger(body, ranks.device)
    if config.activation_checkpointing:
        for layer in blocks:
            layer.forward = partial(
                checkpoint,
                layer.forward,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=partial(_make_attention_contexts, body),
            )
    low = config.precision == "bfloat16"
    around: list[Callable[[], AbstractContextManager[object]]] = []
    if config.activation_offload:
        around.append(activations_in_memory)
    if is_sharded(config, ranks):
        _shard_model_and_blocks(model, blocks, config, ranks)
    elif low:
        # Weights stay float32 and are cast where a product reads them.
        around.append(partial(torch.autocast, ranks.device.type, torch.bfloat16))
        setattr(model, _FLOAT32_HEAD, config.fp32_head)

    def run(fn: Callable[[], T]) -> T:
        with ExitStack() as stack:
            for context in around:
                stack.enter_context(context())
            return fn()

    setattr(model, _PASS, run)
    register_fsdp_forward_method(model, _PASS)


def use_liger(model: PreTrainedModel, device: torch.device) -> None:
    """Take the kernels of Liger (github.com/linkedin/Liger-Kernel) for norms and gated products.

    In place; parameters may be on `meta`. Its rotations and losses are left out: the first would
    change every other model of the process, and the trainer has a loss of its own.

    Raises ConfigError on a CPU, without the library, and for a kind of model it does not know.
    """
    if device.type == "cpu":
        raise ConfigError(
            "trainer.liger: got true on a CPU, but Liger's kernels run on accelerators only; leave "
            "it out, or set trainer.device to auto"
        )
    if find_spec("liger_kernel") is None:
        raise ConfigError(
            "trainer.liger: got true, but liger-kernel is not installed; install it or leave the "
            "setting out"
        )
    library = import_module("liger_kernel.transformers.monkey_patch")
    known = cast("Mapping[str, Callable[..., None]]", library.MODEL_TYPE_TO_APPLY_LIGER_FN)
    kind = str(model.config.model_type)
    if kind not in known:
        raise ConfigError(
            f"trainer.liger: got true for a model of type {kind}, which Liger does not know; leave "
            "the setting out"
        )
    change = cast("Callable[..., None]", library._apply_liger_kernel_to_instance)
    change(model, rope=False, cross_entropy=False, fused_linear_cross_entropy=False)


def is_sharded(config: TrainerConfig, ranks: Ranks) -> bool:
    """True if weights lie in shards; a single one only where it moves to host memory and back."""
    return ranks.mesh is not None and (ranks.size > 1 or config.offload)


def in_pass(model: nn.Module, fn: Callable[[], T]) -> T:
    """What `fn` returns, computed as the model was prepared to."""
    run = getattr(model, _PASS, None)
    return fn() if run is None else cast(T, run(fn))


def head_precision(model: PreTrainedModel) -> AbstractContextManager[object]:
    """What belongs around the output head: nothing, or the end of bfloat16."""
    if not getattr(model, _FLOAT32_HEAD, False):
        return nullcontext()
    return torch.autocast(model.device.type, enabled=False)


def settle(model: nn.Module) -> None:
    """Drop the gathered weights that passes without a backward leave: a step changes them."""
    if isinstance(model, FSDPModule):
        model.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded one, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a sharded tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def layers(model: PreTrainedModel) -> Iterator[nn.Module]:
    """The decoder layers, by the names that the model's class gives."""
    names: set[str] = set(model._no_split_modules or ())  # pyright: ignore[reportPrivateUsage]
    return (module for module in model.modules() if type(module).__name__ in names)


def activations_in_memory() -> saved_tensors_hooks:
    """Keep what backward needs in host memory; weights stay where they are."""

    def pack(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        owner = tensor if tensor._base is None else tensor._base
        if owner.is_leaf and owner.requires_grad:
            return tensor
        return tensor.device, tensor.to("cpu", copy=True)

    def unpack(packed: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        return packed if isinstance(packed, Tensor) else packed[1].to(packed[0])

    return saved_tensors_hooks(pack, unpack)


def _make_attention_contexts(
    model: PreTrainedModel,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What is around a layer now, and around it in backward: the attention that is used now."""
    # transformers offers a public way to set the implementation, none to ask for it.
    name = str(model.config._attn_implementation)  # pyright: ignore[reportPrivateUsage]
    return nullcontext(), attending(model, name)


def _shard_model_and_blocks(
    model: nn.Module, blocks: Sequence[nn.Module], config: TrainerConfig, ranks: Ranks
) -> None:
    shard = partial(
        fully_shard,
        mesh=ranks.mesh,
        offload_policy=CPUOffloadPolicy(pin_memory=ranks.device.type != "cpu")
        if config.offload
        else OffloadPolicy(),
    )
    dtype = torch.bfloat16 if config.precision == "bfloat16" else None
    reduced = torch.float32 if dtype else None
    for block in blocks:
        # What a float32 head reads leaves the last layer in float32.
        last = dtype and config.fp32_head and block is blocks[-1]
        policy = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=reduced, output_dtype=torch.float32 if last else None
        )
        shard(block, mp_policy=policy)
    root = None if config.fp32_head else dtype
    shard(model, mp_policy=MixedPrecisionPolicy(root, reduced, cast_forward_inputs=False))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided by the global count already, so gradients are sums; and gloo knows
            # no other reduction.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if hasattr(module, "set_reduce_scatter_unused_params"):  # from torch 2.13
                # An expert without tokens on one rank has some on another.
                module.set_reduce_scatter_unused_params(True)
