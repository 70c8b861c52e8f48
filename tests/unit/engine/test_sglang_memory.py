"""How much memory a model is said to need."""

from pathlib import Path

import pytest
import torch

from agentrl.engine.local.models.load import load_model
from agentrl.engine.servers import process
from agentrl.engine.servers.process import PROGRAM_BYTES, check_fits
from agentrl.engine.sglang.install import SGLANG
from agentrl.errors import ConfigError


def test_a_model_fits_up_to_the_last_byte(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(tiny_folder)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    kept = model(torch.tensor([[5]])).past_key_values.layers
    cache = 4 * 1000 * sum(layer.keys.numel() + layer.values.numel() for layer in kept)
    monkeypatch.setattr(process, "free_memory", lambda: PROGRAM_BYTES + weights + cache)
    check_fits(SGLANG, tiny_folder, value_bytes=4, kv_tokens=1000)
    with pytest.raises(ConfigError, match=r"lower engine\.sglang\.kv_tokens"):
        check_fits(SGLANG, tiny_folder, value_bytes=4, kv_tokens=1001)


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_counts_without_what_caches_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    _, most, used = process.MEMORY_LIMITS[2 - version]
    monkeypatch.setattr(process, "MEMORY_LIMITS", ((tmp_path, most, used),))
    (tmp_path / used).write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 300\nactive_file 150\ninactive_file 250\n")
    (tmp_path / most).write_text("1000\n")
    assert process.free_memory() == 700
    (tmp_path / most).write_text("max\n")
    assert process.free_memory() > 1000
