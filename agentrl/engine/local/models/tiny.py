"""The tiny model: a Llama-shaped network small enough to learn within minutes on two CPU cores.

Its folder is an ordinary Hugging Face one, so whatever works with it works with a large model. The
weights are random; an environment's demonstrations give it its first skill. Every file is a
function of the seed and of the library versions.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# safetensors, tokenizers and transformers are not fully typed.

import json
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""One id each, as in the Qwen family, but not special: a decoder that skips special tokens keeps
them."""

VOCAB_SIZE = 768
CONTEXT_LENGTH = 2048

# Digits stand alone, so that a number is copied or computed digit by digit; newlines stand alone,
# so that no token spans two lines; what is left are words and runs of punctuation, which makes
# the scaffold of a JSON call a few tokens.
_PIECES = r"\d|\n| ?\p{L}+|[^\p{L}\d\n]+"


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
        _write_tokenizer(unfinished, tokenizer)
        _write_model(unfinished, tokenizer, seed)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def train_tokenizer() -> Tokenizer:
    """The byte-level BPE tokenizer of the shipped corpus; it encodes any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(MARKERS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_data("tiny_corpus.txt").splitlines(keepends=True), trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    return tokenizer


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(_data("tiny_template.jinja"), encoding="utf-8")
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "additional_special_tokens": ["<|im_start|>"],
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT_LENGTH,
        },
    )


def _write_model(folder: Path, tokenizer: Tokenizer, seed: int) -> None:
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
    save_file(_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(
        folder / "generation_config.json",
        {"do_sample": True, "eos_token_id": [stop, end], "pad_token_id": end, "temperature": 1.0},
    )


def _weights(config: LlamaConfig, seed: int) -> dict[str, torch.Tensor]:
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


def _data(name: str) -> str:
    return files("agentrl.engine.local.models").joinpath(name).read_text(encoding="utf-8")


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
