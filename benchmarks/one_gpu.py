"""Which models train on one card, engine and trainer together? The table of docs/one_gpu.md.

Each row comes from `agentrl train --dry-run --device-memory CARD --json` on a folder that holds the
model's shape and no weights. The shapes are those of Qwen2.5.

Usage: python benchmarks/one_gpu.py [0.5B] [1.5B] [3B] [7B]
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (parts of torch and transformers are not typed)

import io
import json
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.cli.dispatch import main as agentrl
from agentrl.engine.local.models.resolve import resolve_model

SHAPES: dict[str, dict[str, int]] = {
    "0.5B": {"width": 896, "inner": 4864, "layers": 24, "heads": 14, "kv_heads": 2},
    "1.5B": {"width": 1536, "inner": 8960, "layers": 28, "heads": 12, "kv_heads": 2},
    "3B": {"width": 2048, "inner": 11008, "layers": 36, "heads": 16, "kv_heads": 2},
    "7B": {"width": 3584, "inner": 18944, "layers": 28, "heads": 28, "kv_heads": 4},
}
CARDS = ("24GB", "48GB", "80GB")
FLAGS = [
    *("--env", "calculator"),
    *("--engine", "sglang"),
    *("--trainer.device", "auto"),
    *("--trainer.precision", "bfloat16"),
    *("--rollout.max-context-tokens", "4096"),
]
SHORT = {
    "--trainer.activation-checkpointing true": "C",
    "--engine.share-device true": "T",
    "--engine.slots 16": "S",
    "--engine.sglang.kv-tokens 16384": "K",
    "--trainer.optimizer adamw8bit": "8",
    "--trainer.lora.rank 16": "L",
    "--trainer.lora.publish adapter": "A",
    "--trainer.lora.dtype bfloat16": "H",
}
HEAD = f"| model | as it is | {' | '.join(CARDS)} |\n|---|---|{'---|' * len(CARDS)}"


def row(name: str) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_folder(folder, SHAPES[name])
        found = [fit(folder, card) for card in CARDS]
    cells = ["yes" if f["fits"] else cell(f["ways_out"]) for f in found]
    return f"| {name} | {found[0]['total'] / 1e9:.1f} GB | {' | '.join(cells)} |"


def cell(flags: list[str] | None) -> str:
    """The letters of the settings with which it fits."""
    return "no" if flags is None else " ".join(SHORT[flag] for flag in flags)


def fit(folder: Path, card: str) -> dict[str, Any]:
    """What the command says."""
    out = io.StringIO()
    with redirect_stdout(out):
        model, memory = ["--model", str(folder)], ["--device-memory", card]
        code = agentrl(["train", *model, *FLAGS, "--dry-run", *memory, "--json"])
    if code not in (0, 1):
        raise SystemExit(code)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def make_folder(folder: Path, shape: dict[str, int]) -> None:
    """A model's config, a tokenizer, and weights that are a header and a hole in the file."""
    config = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": shape["width"],
        "intermediate_size": shape["inner"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "vocab_size": 151_936,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": shape["width"] <= 2048,
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_hollow_weights(folder)
    tiny = resolve_model("tiny")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((tiny / name).read_bytes())


def write_hollow_weights(folder: Path) -> None:
    """Write `model.safetensors` with every tensor's name and shape and no bytes on the disk."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))  # type: ignore[no-untyped-call]
    header: dict[str, Any] = {}
    end = 0
    tied = model.config.tie_word_embeddings
    weights: dict[str, torch.Tensor] = model.state_dict()
    for name, tensor in weights.items():
        if not (tied and name == "lm_head.weight"):
            begin, end = end, end + 2 * tensor.numel()
            offsets = [begin, end]
            header[name] = {"dtype": "BF16", "shape": [*tensor.shape], "data_offsets": offsets}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def main() -> int:
    """Print the table."""
    print(HEAD)
    for name in sys.argv[1:] or SHAPES:
        print(row(name), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
