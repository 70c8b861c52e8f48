"""The tiny model: a Llama-shaped network small enough to learn within minutes on two CPU cores.

Its folder is an ordinary Hugging Face one, so whatever works with it works with a large model. The
weights are random; an environment's demonstrations give it its first skill. Every file is a
function of the seed and of the library versions.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# safetensors, tokenizers and transformers are not fully typed.

import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.engine.local.models.tiny_tokenizer import (
    CONTEXT_LENGTH,
    VOCAB_SIZE,
    train_tokenizer,
    write_json,
    write_tokenizer,
)


def make_tiny(folder: Path, seed: int = 0) -> None:
    """Write the model's folder; a reader sees all of it or nothing.

    Raises FileExistsError if the folder exists.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists; remove it or choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        tokenizer = train_tokenizer()
        write_tokenizer(unfinished, tokenizer)
        _write_tiny_model(unfinished, tokenizer, seed)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write_tiny_model(folder: Path, tokenizer: Tokenizer, seed: int) -> None:
    stop, end = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        # Short wavelengths tell neighbours apart: copying has to find its place among like digits.
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=stop,
        pad_token_id=end,
        dtype="float32",
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder)
    save_file(
        _make_random_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"}
    )
    # safetensors keeps its files to the owner, whatever the umask.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
    write_json(
        folder / "generation_config.json",
        {"do_sample": True, "eos_token_id": [stop, end], "pad_token_id": end, "temperature": 1.0},
    )


def _make_random_weights(config: LlamaConfig, seed: int) -> dict[str, torch.Tensor]:
    """Random weights that depend on nothing but the seed; the global generator is not touched."""
    with torch.device("meta"):
        shapes = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, parameter in shapes.named_parameters():
        if parameter.dim() == 1:  # the norms
            weights[name] = torch.ones(parameter.shape)
        else:
            scale = 0.2 if "embed" in name else parameter.shape[1] ** -0.5
            weights[name] = torch.randn(parameter.shape, generator=generator) * scale
    return weights
