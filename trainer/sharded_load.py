"""Models of which each rank only ever holds its own slices: made without weights, then read.

Parameters begin on `meta`, where they take no memory; buffers (rotary frequencies and the like) are
computed as usual. Once the model is sharded, a rank reads its rows of each tensor from the files.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# torch, transformers and safetensors are typed in part only.

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.engine.local.models.check import (
    check_files,
    library_errors,
    read_settings,
    refuse_tensors,
    stored_tensors,
)
from agentrl.engine.local.models.files import weight_files
from agentrl.engine.local.models.load import not_finite
from agentrl.engine.local.models.quiet import quiet
from agentrl.trainer.fsdp import local


def empty_model(folder: Path) -> PreTrainedModel | None:
    """The float32 model of a folder with parameters on `meta`.

    None if its files name tensors otherwise than the model does, or a tied one twice: then it must
    be loaded whole. Raises ConfigError as `check_files` does.
    """
    sdpa = check_files(folder)._supports_sdpa  # pyright: ignore[reportPrivateUsage]
    with quiet(), library_errors(folder), _making_parameters_on_meta():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            read_settings(folder),
            dtype=torch.float32,
            attn_implementation="sdpa" if sdpa else "eager",
            trust_remote_code=False,
        )
    stored = stored_tensors(folder).keys()
    needed = dict(model.named_parameters()).keys()
    known = needed | dict(model.named_buffers()).keys()
    pickled = any(path.suffix != ".safetensors" for path in weight_files(folder))
    return model if needed <= stored <= known and not pickled else None


def read_slices(
    model: PreTrainedModel, folder: Path, *, device: torch.device, weights: torch.device
) -> None:
    """Give a sharded model on `meta` the weights of its folder: this rank's rows of each tensor.

    Args:
        model: as `empty_model` made it, sharded since.
        folder: the same.
        device: where the model computes, and its buffers are.
        weights: where its shards are.
    """
    tied = {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name not in dict(model.named_parameters())
    }
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    with ExitStack() as stack, torch.no_grad():
        files: dict[str, Any] = {}  # the open one of each tensor
        for path in weight_files(folder):
            file = stack.enter_context(safe_open(path, framework="pt"))
            files |= dict.fromkeys(file.keys(), file)
        values: dict[str, Tensor] = {
            name: _load_shard(cast(DTensor, parameter), files[name].get_slice(name), weights)
            for name, parameter in model.named_parameters()
        }
        values |= {n: files[n].get_tensor(n) for n, _ in model.named_buffers() if n in files}
    held = ((name, local(value)) for name, value in values.items())
    refuse_tensors(folder, {"not finite": set(not_finite(held))})
    model.load_state_dict(values, assign=True, strict=False)
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
    for name, parameter in tied.items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, model.get_parameter(first[id(parameter)]))


def _load_shard(parameter: DTensor, stored: Any, device: torch.device) -> DTensor:
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    rows: Tensor = stored[offset[0] : offset[0] + shape[0]] if shape[0] else torch.zeros(shape)
    return DTensor.from_local(
        rows.to(device, parameter.dtype),
        mesh,
        placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


@contextmanager
def _making_parameters_on_meta() -> Generator[None]:
    """Let modules be made with parameters on `meta` and buffers as they are."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            requires_grad = parameter.requires_grad
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
