"""Folders with random damage: refused in one sentence, or exactly the model that they were."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# safetensors and torch are typed in part only.

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.errors import ConfigError
from agentrl.tokens import Tokenizer

DTYPES = (torch.int8, torch.float8_e4m3fn, torch.bool, torch.float64, torch.int64)
SETTINGS = (
    "architectures",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "tie_word_embeddings",
    "vocab_size",
)
VALUES: tuple[object, ...] = (None, -1, 0, 7, 1e9, "x", [], {}, [1], "t5", "qwen2_vl")
EXTRA: dict[str, object] = {
    "auto_map": {"AutoConfig": "a.B", "AutoModelForCausalLM": "a.C"},
    "quantization_config": {"quant_method": "awq", "bits": 4},
    "transformers_weights": "other.safetensors",
    "dtype": "float99",
    "rope_parameters": {"rope_type": "x"},
}


def damage_weights(folder: Path, rng: random.Random) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    value = tensors.pop(name)
    others: list[dict[str, Tensor]] = [
        {},
        {f"{name}.x": value},
        {name.replace("model.", "", 1): value},
        {name: value[:-1]},
        {name: value.reshape(-1)},
        {name: torch.full_like(value, torch.inf)},
        {name: value.to(rng.choice(DTYPES))},
        {name: value, f"{name}_scale": value.clone()},
    ]
    kept = tensors | rng.choice(others)
    save_file({k: v.contiguous() for k, v in kept.items()}, path, metadata={"format": "pt"})


def damage_config(folder: Path, rng: random.Random) -> None:
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    change: dict[str, object] = {rng.choice(SETTINGS): rng.choice(VALUES)}
    extra = rng.choice(sorted(EXTRA))
    path.write_text(json.dumps(config | rng.choice([change, change, {extra: EXTRA[extra]}])))


def damage_file(folder: Path, rng: random.Random) -> None:
    path = rng.choice(sorted(folder.iterdir()))
    content = path.read_bytes()
    path.unlink()
    match rng.randrange(6):
        case 0:
            path.write_bytes(content[: rng.randrange(len(content))])
        case 1:
            path.write_bytes(b"")
        case 2:
            path.write_text(rng.choice(["[]", "3", "{", "[" * 100_000, '{"model": 3}', "{}"]))
        case 3:
            path.symlink_to(path)
        case 4:
            path.mkdir()
        case _:
            pass


@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.nightly)])
@pytest.mark.timeout(600)
def test_a_damaged_folder_is_refused_or_exactly_right(count: int, tmp_path: Path) -> None:
    tiny = resolve_model("tiny")
    ids = torch.arange(9)[None]
    with torch.no_grad():
        expected = load_model(tiny)(ids).logits
    refused: list[str] = []
    for seed in range(count):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(tiny, folder)
        (damage_weights, damage_config, damage_file)[seed % 3](folder, rng)
        try:
            Tokenizer.load(folder)
            model = load_model(folder)
        except ConfigError as error:
            refused.append(str(error))
        else:
            with torch.no_grad():
                close = torch.allclose(model(ids).logits, expected, rtol=0, atol=1e-6)
            assert close, f"seed {seed} was loaded as another model"
        shutil.rmtree(folder)
    assert len(refused) > count // 2
    assert not [said for said in refused if "\n" in said or len(said) > 1000]
