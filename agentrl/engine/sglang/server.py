"""How an SGLang server is started.

Whether the model fits into a CPU's memory is asked before, since a server would find out late, or
be killed and not say why.
"""

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
    check_port_or_find_free_one,
    find_startable,
    given_arguments,
    launch,
    more_arguments,
)
from agentrl.engine.sglang.control import ADMIN_KEY, KEY
from agentrl.engine.sglang.install import SGLANG, SHIMS

RESERVED = 8
"""At least so many tokens of its context a server keeps to itself: it refuses longer prompts."""
_OURS = ("--config", "--api-key", "--admin-api-key")
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

    Its log goes into the folder `logs`. Without `keys` it gets random ones.

    Raises:
        ConfigError: SGLang is not installed, the port is taken, or the memory does not suffice.
    """
    where = check_startable(config, model)
    port = check_port_or_find_free_one(host, port)
    command = launch_command(where, config, model, host, port)
    env = _make_server_env_vars(where, config)
    keys = Keys.random() if keys is None else keys
    secrets = {"api-key": keys.user, "admin-api-key": keys.admin}
    return launch(
        SGLANG,
        command,
        env,
        logs,
        host=host,
        port=port,
        keys=keys,
        secrets={name: key for name, key in secrets.items() if key},
    )


def check_startable(config: EngineConfig, model: Path) -> Installation:
    """The installation, if a server could start; otherwise ConfigError says at once why not."""
    return find_startable(SGLANG, config.dtype, config.sglang.kv_tokens, model)


def launch_command(
    where: Installation, config: EngineConfig, model: Path, host: str, port: int
) -> Sequence[str]:
    """The command that starts a server for the model."""
    settings = config.sglang
    pairs: dict[str, object] = {
        "--model-path": model,
        "--host": host,
        "--port": port,
        "--weight-version": 0,
        "--dtype": config.dtype,
        "--tp-size": settings.tp_size,
        "--dp-size": settings.dp_size,
        "--context-length": config.context_length or None,
        "--mem-fraction-static": settings.memory_fraction,
        "--max-total-tokens": settings.kv_tokens or None,
    }
    flags = ["--skip-server-warmup", "--sleep-on-idle"]
    from agentrl.engine.local.routing_replay import recorded_experts  # torch, only now

    if recorded_experts(model):
        flags.append("--enable-return-routed-experts")
    if config.share_device and where.flavour != "cpu":
        flags.append("--enable-memory-saver")
    program = ["-m", "sglang.launch_server"]
    if where.flavour == "cpu":
        program = [str(SHIMS / "serve.py")]
        pairs |= {"--device": "cpu", "--attention-backend": "torch_native"}
        pairs["--max-total-tokens"] = settings.kv_tokens or CPU_KV_TOKENS
        if config.dtype == "auto":
            pairs["--dtype"] = "float32"
    reason = (
        "a started server gets keys by its own --config; leave it out, or choose the keys by "
        f"{KEY} and {ADMIN_KEY} of `agentrl engine serve sglang`"
    )
    more = more_arguments(SGLANG, settings.extra_args, _OURS, reason)
    return [str(where.python), *program, *given_arguments(pairs, flags), *more]


def _make_server_env_vars(where: Installation, config: EngineConfig) -> dict[str, str]:
    env = dict(os.environ)
    env |= {
        "HF_HUB_OFFLINE": "1",  # the model is a folder
        "TOKENIZERS_PARALLELISM": "false",
        # Otherwise a health check samples a token, which a paused server cannot do.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    }
    env.pop("PYTHONPATH", None)
    if where.flavour == "cpu":
        env |= {"PYTHONPATH": str(SHIMS), "SGLANG_USE_CPU_ENGINE": "1"}
        env["TORCHDYNAMO_DISABLE"] = "1"  # no compiler is asked for the few things that it compiles
        # More threads than cores that are free made it 4 to 20 times slower.
        env["OMP_NUM_THREADS"] = str(config.threads or 1)
        if config.sglang.tp_size > 1:
            cores = sorted(os.sched_getaffinity(0))
            bound = [str(cores[i % len(cores)]) for i in range(config.sglang.tp_size)]
            env.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join(bound))
    return env
