"""Hugging Face folders: what a trained model is given away as."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch, transformers and peft are typed in part only.

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from agentrl.engine.local.models.load import quiet
from agentrl.errors import RunError
from agentrl.trainer.folders import disk_errors, replace_folder, unfinished_folder
from agentrl.trainer.lora import AdapterWeights, MergedWeights, adapter_settings

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
) -> Path:
    """Write a folder that transformers, PEFT and SGLang load, atomically.

    It holds safetensors, config, generation config, tokenizer and chat template; LoRA is merged, or
    with `adapter` all there is beside the tokenizer. `card` becomes its README.md.
    """
    for name, parameter in model.named_parameters():
        refuse_non_finite(name, parameter)
    with unfinished_folder(out) as unfinished, disk_errors(out):
        if adapter:
            _save_adapter(model, tokenizer_folder, unfinished)
        else:
            _save_model(model, unfinished)
        for name in _TOKENIZER_FILES:
            source = tokenizer_folder / name
            if source.exists():
                shutil.copyfile(source, unfinished / name)
        if card:
            (unfinished / "README.md").write_text(card, encoding="utf-8")
        replace_folder(unfinished, out)
    return out


def refuse_non_finite(name: str, tensor: torch.Tensor) -> None:
    """Raise RunError for a tensor that must not be kept."""
    if not torch.isfinite(tensor).all():
        raise RunError(
            f"{name} has values that are not finite, so nothing was saved; go on from the last "
            "checkpoint with a lower learning rate"
        )


def _save_model(model: PreTrainedModel, folder: Path) -> None:
    merged = None
    if adapter_settings(model) is not None:
        merged = dict(MergedWeights(model).named_tensors())
    with quiet():
        model.save_pretrained(folder, state_dict=merged)


def _save_adapter(model: PreTrainedModel, base: Path, folder: Path) -> None:
    settings = adapter_settings(model)
    if settings is None:
        raise RunError(
            "the run trained all weights and has no adapter; export it without --adapter"
        )
    settings.base_model_name_or_path = str(base)
    settings.inference_mode = True
    settings.save_pretrained(str(folder))
    tensors = {n: t.cpu().contiguous() for n, t in AdapterWeights(model).named_tensors()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
