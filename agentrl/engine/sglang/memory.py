"""Does a model fit into a CPU's memory?

Asked before a server is started, since it would find out late, or be killed and not say why.
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError

PROGRAM_BYTES = 2_200_000_000
"""What the server's processes take without a model; measured with 0.5.23 on a CPU."""
_CGROUP = Path("/sys/fs/cgroup")
LIMITS = (
    (_CGROUP, "memory.max", "memory.current"),
    (_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def check_fits(model: Path, *, value_bytes: int, kv_tokens: int) -> None:
    """Raise ConfigError if the weights and so many cached tokens are more than what is free.

    `value_bytes`: of one weight, key or value.
    """
    weights = _num_weights(model) * value_bytes
    cache = _values_per_token(model) * value_bytes * kv_tokens
    needed, free = weights + cache + PROGRAM_BYTES, free_bytes()
    if needed > free:
        raise ConfigError(
            f"the memory does not suffice for SGLang: {_gb(needed)} GB are needed (weights "
            f"{_gb(weights)}, a cache of {kv_tokens:,} tokens {_gb(cache)}, the program "
            f"{_gb(PROGRAM_BYTES)}), {_gb(free)} GB are free; lower engine.sglang.kv_tokens, or "
            "choose a smaller model"
        )


def _num_weights(model: Path) -> int:
    """As the headers of the weight files say; the format begins with the header's length."""
    total = 0
    for path in model.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        total += sum(prod(entry["shape"]) for name, entry in header.items() if name[:2] != "__")
    return total


def _values_per_token(model: Path) -> int:
    """Keys and values of one token in layers of full attention; 0 where others are kept."""
    config: Mapping[str, Any] = json.loads((model / "config.json").read_bytes())
    kinds = config.get("layer_types")
    layers = kinds.count("full_attention") if kinds else config.get("num_hidden_layers")
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    if not layers or not heads or not width or "kv_lora_rank" in config:
        return 0
    head_dim = config.get("head_dim") or width // heads
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * head_dim)


def free_bytes() -> int:
    """What the machine, or the container, has left; what only caches files counts as free."""
    free = int(_fields(Path("/proc/meminfo"))["MemAvailable:"]) * 1024
    for folder, most, used in LIMITS:
        if (folder / most).exists() and (limit := (folder / most).read_text().strip()) != "max":
            stat = _fields(folder / "memory.stat")
            cached = int(stat["active_file"]) + int(stat["inactive_file"])
            free = min(free, int(limit) - int((folder / used).read_text()) + cached)
    return free


def _fields(path: Path) -> Mapping[str, str]:
    return {line.split()[0]: line.split()[1] for line in path.read_text().splitlines()}


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f}"
