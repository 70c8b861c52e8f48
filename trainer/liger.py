"""Liger's fused kernels for norms and gated products, where the library and its hardware are there.

Source: github.com/linkedin/Liger-Kernel. Its rotations and losses are left out: the first would
change every other model of the process, and the trainer has a loss of its own.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import cast

import torch
from transformers import PreTrainedModel

from agentrl.errors import ConfigError


def use_liger(model: PreTrainedModel, device: torch.device) -> None:
    """Change how the layers of this model compute, in place; its parameters may be on `meta`.

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
