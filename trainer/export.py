"""Hugging Face folders: what a trained model is given away as."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch, transformers and peft are typed in part only.

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from agentrl.engine import WeightSource
from agentrl.engine.local.models.quiet import quiet
from agentrl.errors import RunError
from agentrl.trainer.adapter import save_adapter
from agentrl.trainer.atomic_dir import disk_errors, replace_folder, unfinished_folder
from agentrl.trainer.fsdp import whole
from agentrl.trainer.lora import AdapterWeights, adapter_settings
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
    tensors = _tensors(model, ranks, adapter=adapter)
    if ranks.rank:
        return out
    with unfinished_folder(out) as unfinished, disk_errors(out):
        if adapter:
            save_adapter(model, tokenizer_folder, tensors, unfinished)
        else:
            _save_model(model, tensors, unfinished)
        _follow_umask(unfinished)
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


def _tensors(model: PreTrainedModel, ranks: Ranks, *, adapter: bool) -> dict[str, Tensor]:
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
    return tensors if alone else tensors | _stored_buffers(model)


def _stored_buffers(model: PreTrainedModel) -> dict[str, Tensor]:
    """What a model's files hold beside its weights, such as the biases of some routers."""
    stored = model.state_dict().keys()
    return {n: b.cpu().contiguous() for n, b in model.named_buffers() if n in stored}


def _save_model(model: PreTrainedModel, tensors: dict[str, Tensor], folder: Path) -> None:
    with quiet():
        model.save_pretrained(folder, state_dict=tensors)


def _follow_umask(folder: Path) -> None:
    """Give the weights the mode of their neighbours: safetensors keeps them to the owner."""
    mode = (folder / "generation_config.json").stat().st_mode
    for path in folder.glob("*.safetensors"):
        path.chmod(mode)
