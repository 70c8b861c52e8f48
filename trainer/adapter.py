"""A folder with adapters alone, which PEFT puts where they were trained.

PEFT takes a target that is called like a part of stacked experts (`gate_proj`) for these experts,
also where it means the layers of that name beside them: those are named one by one, as parameters.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (parts of torch, transformers and peft are not typed)

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.engine.local.models.quiet import quiet
from agentrl.errors import RunError
from agentrl.trainer.lora import adapted_layers, adapter_settings, parts_of_experts


def save_adapter(
    model: PreTrainedModel, base: Path, tensors: Mapping[str, Tensor], folder: Path
) -> None:
    """Write the adapters of a model, whose other weights are in `base`.

    Raises RunError if the model has none, or none that PEFT would load as they are.
    """
    trained = adapter_settings(model)
    if trained is None:
        raise RunError(
            "the run trained all weights and has no adapter; export it without --adapter"
        )
    settings = _as_peft_reads(model, trained)
    _check_loads(model, settings, tensors)
    settings.base_model_name_or_path = str(base)
    settings.inference_mode = True
    settings.save_pretrained(str(folder))
    model.generation_config.save_pretrained(folder)
    save_file(dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _as_peft_reads(model: PreTrainedModel, trained: peft.LoraConfig) -> peft.LoraConfig:
    settings = copy.deepcopy(trained)
    taken = parts_of_experts(model, settings.target_modules or ())
    if taken:
        settings.target_modules = sorted(set(settings.target_modules or ()) - taken)
        settings.target_parameters = [
            f"{name}.weight"
            for name in adapted_layers(model)
            if any(f".{name}".endswith(f".{target}") for target in taken)
        ]
    return settings


def _check_loads(
    model: PreTrainedModel, settings: peft.LoraConfig, tensors: Mapping[str, Tensor]
) -> None:
    """Let PEFT load the folder's content into a model without numbers."""
    kinds: Any = AutoModelForCausalLM
    try:
        with quiet(), torch.device("meta"):
            loaded: Any = peft.get_peft_model(
                kinds.from_config(model.config), copy.deepcopy(settings)
            )
            report: Any = peft.set_peft_model_state_dict(
                loaded, {name: tensor.to("meta") for name, tensor in tensors.items()}
            )
        wrong = [*report.unexpected_keys, *(k for k in report.missing_keys if ".lora_" in k)]
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        wrong = [str(error).partition("\n")[0]]
    if wrong:
        raise RunError(
            f"PEFT would not load the adapter of {type(model).__name__} as it was trained "
            f"({wrong[0]}); export it without --adapter, which merges it"
        )
