"""`agentrl engine serve`: a server in the foreground."""

import asyncio
import time
from functools import partial
from pathlib import Path

from pydantic import Field

from agentrl.cli.command import Arguments, Verb, check_name
from agentrl.config import Config, load_config
from agentrl.engine.config import EngineConfig
from agentrl.engine.local.models.resolve import default_cache_dir, resolve_model
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.process import HOST
from agentrl.errors import ConfigError, EngineError
from agentrl.orchestration.kinds import SERVERS, ServerKind
from agentrl.terminated import Terminated

_LOOK_S = 0.5
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServeOptions(Config):
    """What to serve and where."""

    model: str = Field(
        default="tiny", description="tiny, smollm2-135m, a Hugging Face folder or a hub name."
    )
    port: int = Field(default=0, ge=0, le=65535, description="Port; 0: a free one.")
    host: str = Field(default=HOST, description="Address to listen on.")
    logs: str | None = Field(
        default=None, description="Folder for the server's log; in the cache by default."
    )


class EngineFlags(Config):
    """The settings of the engine, as for `train`."""

    engine: EngineConfig = Field(default=EngineConfig(), description="The engine.")


def _run_engine_serve(options: ServeOptions, arguments: Arguments) -> int:
    name = arguments.positional[0]
    check_name(name, (*SERVERS, "local"), "served")
    config = load_config(EngineFlags, flags=arguments.flags).config.engine
    family = "sglang" if name == "local" else name  # whose protocol it speaks
    keys = Keys.given(family)
    refuse_open_address(options.host, keys, family)
    if name == "local":
        return _serve_local_engine(options, config, keys)
    return _serve_servers_of_kind(SERVERS[name], options, config, keys)


def refuse_open_address(host: str, keys: Keys, name: str) -> None:
    """Raise ConfigError where others than this machine could come in without a key."""
    if host not in _LOOPBACK and not keys.user:
        raise ConfigError(
            f"--host: whoever reaches {host} could change the weights; set "
            f"AGENTRL_{name.upper()}_KEY"
        )


def _serve_local_engine(options: ServeOptions, config: EngineConfig, keys: Keys) -> int:
    from agentrl.engine.serve.app import serve
    from agentrl.engine.serve.listening import bind

    with bind(options.host, options.port) as listening:
        url = f"http://{options.host}:{listening.getsockname()[1]}"
        folder = resolve_model(options.model)
        ready = partial(print, f"{options.model} is served at {url}; stop with Ctrl-C", flush=True)
        asyncio.run(serve(folder, config, listening, ready, keys))
    print("stopped", flush=True)
    return 0


def _serve_servers_of_kind(
    kind: ServerKind, options: ServeOptions, config: EngineConfig, keys: Keys
) -> int:
    logs = Path(options.logs) if options.logs else default_cache_dir() / "logs"
    folder = resolve_model(options.model)
    server = kind.serve(config, folder, logs, port=options.port, host=options.host, keys=keys)
    try:
        print(f"starting {kind.product.title}; its log is {server.log}", flush=True)
        asyncio.run(server.wait_ready(kind.settings(config).start_timeout_s))
        print(f"{options.model} is served at {server.url}; stop with Ctrl-C", flush=True)
        while server.alive:
            time.sleep(_LOOK_S)
        raise EngineError(f"the server ended: {server.last_words()}")
    except (KeyboardInterrupt, Terminated):
        print("stopping", flush=True)
    finally:
        server.stop()
    return 0


COMMAND = Verb(
    summary="Start a server for a model; it ends with this command.",
    examples=[
        "agentrl engine serve sglang --model tiny --port 30000",
        "agentrl engine serve vllm --model tiny --port 30000",
        "agentrl engine serve local --model tiny --port 30000",
        "agentrl engine serve sglang --model Qwen/Qwen3-8B --engine.sglang.tp-size 2",
    ],
    options=ServeOptions,
    run=_run_engine_serve,
    takes=["ENGINE"],
    config=EngineFlags,
)
