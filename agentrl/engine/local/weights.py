"""The engine's model: the trainer's parameters or a copy, and the transactions that update it.

Whole tensors are checked, then written in place. Slices of several trainer ranks are written by
them into a second set of parameters while the first one serves, and the two change places once all
has arrived: what fails half way leaves no trace. The price is that second set, in shared memory.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import copy
import sys
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.errors import EngineError
from agentrl.weights.check import check_finite, written
from agentrl.weights.experts import as_in_files
from agentrl.weights.plan import Bucket, Layout, buckets, plan, unsharded
from agentrl.weights.shared import Shared, share, view
from agentrl.weights.source import SlicedSource


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
    return ours


def update_parameters(
    model: nn.Module, theirs: Iterable[tuple[str, Tensor]], *, partial: bool = False
) -> None:
    """Write every named tensor into the model, or none of them: `theirs` is gone through twice.

    A `partial` update may lack parameters, name tied ones by their other name too, and have each
    expert by itself.
    Parameters that are given as they are here (shared ones) are left alone. Nothing is allocated:
    values are cast while they are written in place. Of a model with LoRA adapters these alone are
    given, named as in `adapter_model.safetensors`.
    """
    ours = _map_names_to_parameters(model, partial)
    names: list[str] = []
    for name, tensor in theirs:
        names.append(name)
        if name in ours:
            _check_new_weight_is_loadable(name, tensor, ours[name])
    expected = set(names) & set(ours) if partial else set(ours)
    got = set(names)
    repeated = {name for name, count in Counter(names).items() if count > 1}
    faults = (("lack", expected - got), ("hold the unknown", got - expected), ("repeat", repeated))
    for what, wrong in faults:
        if wrong:
            raise EngineError(
                f"the new weights {what} {len(wrong)} of {len(expected)} tensors, first "
                f"{min(wrong)}; send every parameter once, under its Hugging Face name"
            )
    with torch.no_grad():
        for name, tensor in theirs:
            if tensor.data_ptr() != ours[name].data_ptr():
                ours[name].copy_(tensor)


def _map_names_to_parameters(model: nn.Module, partial: bool) -> dict[str, Tensor]:
    named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=not partial))
    if partial:
        named |= dict(as_in_files(named.items()))
    if not hasattr(model, "peft_config"):
        return named
    adapters = {name: p for name, p in named.items() if ".lora_" in name}
    return {f"base_model.model.{n.replace('.default.', '.')}": p for n, p in adapters.items()}


class Slices:
    """The engine's parameters as the ranks of a trainer write them."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
        self._ours = unsharded(shapes)
        self._theirs: Layout | None = None
        self._bucket: Bucket | None = None
        self._spare: Shared | None = None
        self._serving: Shared | None = None

    async def receive(self, weights: SlicedSource, timeout_s: float) -> None:
        """Let all ranks write into the spare set; the model serves on meanwhile.

        Raises:
            EngineError: layouts that do not fit, a slice that did not come, or not in time.
        """
        theirs = weights.layout()
        if self._bucket is None or theirs != self._theirs:
            moves = plan(theirs, self._ours)
            (self._bucket,) = buckets(self._ours, moves, self._dtype.itemsize, sys.maxsize)
            self._theirs = theirs
        if self._spare is None:
            self._spare = share(self._bucket.num_bytes)
        await written(weights, self._bucket, self._spare, self._dtype, timeout_s)

    def change(self) -> None:
        """Let the model have what was received; between two steps only."""
        assert self._bucket is not None
        assert self._spare is not None
        for name, parameter in self._model.named_parameters():
            parameter.data = view(self._spare.data, self._bucket, 0, name, self._dtype)
        self._serving, self._spare = self._spare, self._serving

    def release(self) -> None:
        """Let go of both sets, or of whatever the model has instead."""
        self._serving = self._spare = None
        for parameter in self._model.parameters():
            parameter.data = parameter.detach().new_empty(0)

    def allocate(self) -> None:
        """Room for weights, without values."""
        for name, parameter in self._model.named_parameters():
            parameter.data = torch.empty(
                self._ours[0][name].shape, dtype=self._dtype, device=parameter.device
            )


def _check_new_weight_is_loadable(name: str, tensor: Tensor, ours: Tensor) -> None:
    if tensor.shape != ours.shape:
        raise EngineError(
            f"the new weights have {name} of shape {tuple(tensor.shape)}, the engine's has "
            f"{tuple(ours.shape)}; send the full, unsharded tensor of the same model"
        )
    if not tensor.is_floating_point():
        raise EngineError(f"the new weights have {name} as {tensor.dtype}, expected floating point")
    check_finite(name, tensor)
