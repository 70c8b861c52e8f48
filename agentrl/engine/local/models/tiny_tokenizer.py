"""The tokenizer of the tiny model; unlike its weights it needs no torch."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# tokenizers is not fully typed.

import json
from importlib.resources import files
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

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


def make_tokenizer(folder: Path) -> None:
    """Write a folder without weights, for whoever only renders and parses."""
    folder.mkdir()
    write_tokenizer(folder, train_tokenizer())
    sizes = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": CONTEXT_LENGTH}
    write_json(folder / "config.json", {"model_type": "llama", **sizes})


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
    tokenizer.train_from_iterator(
        _read_packaged_text_file("tiny_corpus.txt").splitlines(keepends=True), trainer
    )
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write its files and the chat template."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        _read_packaged_text_file("tiny_template.jinja"), encoding="utf-8"
    )
    write_json(
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


def _read_packaged_text_file(name: str) -> str:
    return files("agentrl.engine.local.models").joinpath(name).read_text(encoding="utf-8")


def write_json(path: Path, value: dict[str, object]) -> None:
    """Write one of the folder's files."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
