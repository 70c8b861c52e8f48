"""Hugging Face folders: what a trained model is given away as.

A folder with adapters alone is one of which PEFT puts them where they were trained. PEFT takes a
target that is called like a part of stacked experts (`gate_proj`) for these experts, also where it
means the layers of that name beside them: those are named one by one, as parameters.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# torch, transformers and peft are typed in part only.

import copy
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from agentrl.engine import WeightSource
from agentrl.engine.local.models.quiet import quiet
from agentrl.errors import RunError
from agentrl.trainer.atomic_dir import disk_errors, replace_folder, unfinished_folder
from agentrl.trainer.fsdp import whole
from agentrl.trainer.lora import (
    AdapterWeights,
    adapted_layers,
    adapter_settings,
    parts_of_experts,
)
from agentrl.trainer.parallel_dims import SINGLE, Ranks
from agentrl.trainer.weights import ModelWeights

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
)


def export_hf(
    model: PreTrainedModel,
    tokenizer_folder: Path,
    out: Path,
    *,
    adapter: bool = False,
    card: str = "",
    ranks: Ranks = SINGLE,
) -> Path:
    """Write a folder that transformers, PEFT and SGLang load, atomically.

    It holds safetensors, config, generation config, tokenizer and chat template; LoRA is merged, or
    with `adapter` all there is beside the tokenizer. `card` becomes its README.md. With several
    ranks all of them call this and the first one writes.
    """
    tensors = _gather_tensors(model, ranks, adapter=adapter)
    if ranks.rank:
        return out
    with unfinished_folder(out) as unfinished, disk_errors(out):
        if adapter:
            _save_adapter(model, tokenizer_folder, tensors, unfinished)
        else:
            with quiet():
                model.save_pretrained(unfinished, state_dict=tensors)
        # Safetensors keeps weights to the owner; they get the mode of their neighbours.
        mode = min(unfinished.glob("*.json")).stat().st_mode
        for path in unfinished.glob("*.safetensors"):
            path.chmod(mode)
        for name in _TOKENIZER_FILES:
            source = tokenizer_folder / name
            if source.exists():
                shutil.copyfile(source, unfinished / name)
        if card:
            (unfinished / "README.md").write_text(card, encoding="utf-8")
        replace_folder(unfinished, out)
    return out


def set_generation(model: PreTrainedModel, stop_ids: Iterable[int], temperature: float) -> None:
    """Let `generation_config.json` stop and sample as in training."""
    old = model.generation_config
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers'
        eos_token_id=sorted(stop_ids),
        bos_token_id=getattr(old, "bos_token_id", None),
        pad_token_id=getattr(old, "pad_token_id", None),
        do_sample=True,
        temperature=temperature,
    )


def not_finite(name: str) -> RunError:
    """The error of a tensor that must not be kept."""
    return RunError(
        f"{name} has values that are not finite, so nothing was saved; go on from the last "
        "checkpoint with a lower learning rate"
    )


def _gather_tensors(model: PreTrainedModel, ranks: Ranks, *, adapter: bool) -> dict[str, Tensor]:
    """What is written, whole, on the first rank; raises RunError on all if it is not finite."""
    alone = adapter and adapter_settings(model) is not None
    source: WeightSource = AdapterWeights(model) if alone else ModelWeights(model)
    tensors: dict[str, Tensor] = {}
    for name, tensor in source.named_tensors():
        full = whole(tensor)
        if not torch.isfinite(full).all():
            raise not_finite(name)
        if ranks.rank == 0:
            tensors[name] = full.cpu().contiguous()
    if alone:
        return tensors
    # What a model's files hold beside its weights, such as the biases of some routers.
    stored = model.state_dict().keys()
    return tensors | {n: b.cpu().contiguous() for n, b in model.named_buffers() if n in stored}


def _save_adapter(
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
    settings = _make_peft_settings(model, trained)
    _check_peft_loads(model, settings, tensors)
    settings.base_model_name_or_path = str(base)
    settings.inference_mode = True
    settings.save_pretrained(str(folder))
    model.generation_config.save_pretrained(folder)
    save_file(dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _make_peft_settings(model: PreTrainedModel, trained: peft.LoraConfig) -> peft.LoraConfig:
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


def _check_peft_loads(
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
