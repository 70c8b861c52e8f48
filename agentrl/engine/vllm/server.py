"""How a vLLM server is started."""

import os
from collections.abc import Sequence
from pathlib import Path

from agentrl.engine.config import EngineConfig
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.install import Installation
from agentrl.engine.servers.process import (
    CPU_KV_TOKENS,
    HOST,
    Server,
    cache_bytes_per_token,
    check_port_or_find_free_one,
    find_startable,
    given_arguments,
    launch,
    more_arguments,
)
from agentrl.engine.vllm.control import KEY, NO_SHARING
from agentrl.engine.vllm.install import VLLM
from agentrl.errors import ConfigError

SHIMS = Path(__file__).parent / "shims"
_BLOCK = 32
"""Tokens of a block of the cache; on a CPU there are no smaller ones."""
_HEAD = 32
"""On a CPU heads are padded to a multiple of it at most."""
_OURS = ("--api-key", "--middleware", "--worker-extension-cls", "--logprobs-mode", "--config")
"""Arguments that only `start` gives."""


def start(
    config: EngineConfig,
    model: Path,
    logs: Path,
    *,
    port: int = 0,
    host: str = HOST,
    keys: Keys | None = None,
) -> Server:
    """Start a server for the model on a port, or on a free one; it is not ready yet.

    Its log goes into the folder `logs`. Without `keys` it gets a random one.

    Raises:
        ConfigError: vLLM is not installed, the port is taken, or the memory does not suffice.
    """
    where = check_startable(config, model)
    port = check_port_or_find_free_one(host, port)
    keys = Keys.random() if keys is None else keys
    keys = Keys(keys.user, keys.user)  # one key opens all
    command = launch_command(where, config, model, host, port)
    env = _make_server_env_vars(where, config) | {KEY: keys.user}
    return launch(VLLM, command, env, logs, host=host, port=port, keys=keys, secrets={})


def check_startable(config: EngineConfig, model: Path) -> Installation:
    """The installation, if a server could start; otherwise ConfigError says at once why not."""
    check_sharing(config)
    return find_startable(VLLM, config.dtype, config.vllm.kv_tokens, model)


def check_sharing(config: EngineConfig) -> None:
    """Raise ConfigError if it should take turns with the trainer on one device."""
    if config.share_device:
        raise ConfigError(NO_SHARING)


def launch_command(
    where: Installation, config: EngineConfig, model: Path, host: str, port: int
) -> Sequence[str]:
    """The command that starts a server for the model."""
    settings = config.vllm
    kv_tokens = settings.kv_tokens
    pairs: dict[str, object] = {
        "--model": model,
        "--host": host,
        "--port": port,
        "--dtype": config.dtype,
        "--tensor-parallel-size": settings.tp_size,
        "--data-parallel-size": settings.dp_size,
        "--max-model-len": config.context_length or None,
        "--max-num-seqs": config.slots,
        "--gpu-memory-utilization": settings.memory_fraction,
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",  # not the model's own
        "--middleware": "agentrl_keys.NeedsKey",
        "--worker-extension-cls": "agentrl_worker.LoadsWeights",
        "--block-size": _BLOCK,
    }
    flags = ["--enable-scale-out", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    if where.flavour == "cpu":
        kv_tokens = kv_tokens or CPU_KV_TOKENS
        flags.append("--enforce-eager")  # no compiler is asked for
        if config.dtype == "auto":
            pairs["--dtype"] = "float32"
        value_bytes = 2 if config.dtype == "bfloat16" else 4
        known = cache_bytes_per_token(model, value_bytes, _HEAD) * (kv_tokens + _BLOCK)
        pairs["--kv-cache-memory-bytes"] = known or 4 << 30
    if kv_tokens:
        pairs["--num-gpu-blocks-override"] = -(-kv_tokens // _BLOCK)
    return [
        *(str(where.python), str(SHIMS / "serve.py")),
        *given_arguments(pairs, flags),
        *more_arguments(VLLM, settings.extra_args, _OURS, "agentrl gives it; leave it out"),
    ]


def _make_server_env_vars(where: Installation, config: EngineConfig) -> dict[str, str]:
    env = dict(os.environ) | {
        "PYTHONPATH": str(SHIMS),
        "HF_HUB_OFFLINE": "1",  # the model is a folder
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_SERVER_DEV_MODE": "1",  # pauses, weights and versions; none without the key
        "VLLM_HOST_IP": HOST,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    if where.flavour == "cpu":
        env["TORCHDYNAMO_DISABLE"] = "1"
        # More threads than cores that are free made SGLang's server 4 to 20 times slower.
        env["OMP_NUM_THREADS"] = str(config.threads or 1)
        env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    return env
