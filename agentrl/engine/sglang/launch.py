"""Servers of SGLang for a run: started at once, of use once they were waited for and checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from agentrl.engine.config import EngineConfig
from agentrl.engine.experts import experts_per_token
from agentrl.engine.local.models.resolve import default_cache_dir
from agentrl.engine.servers.launch import vocab_size
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.install import SGLANG
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import AdapterTransport, Transport, make_transport


def start_servers(
    config: EngineConfig,
    folder: Path,
    *,
    context_length: int,
    logs: Path | None = None,
    adapter: Mapping[str, object] | None = None,
    deadline_s: float = 30.0,
) -> SglangEngine:
    """Start a server for the model, its log in `logs` or the cache, or take those that run.

    With `adapter`, the settings of one as PEFT has them, only adapters are sent to it. One that
    gives no sign of life for `deadline_s` counts as gone.
    """
    settings = config.sglang
    if adapter:
        transport: Transport = AdapterTransport(adapter)
    else:
        transport = make_transport(settings.transport, config.relay_urls)
    if adapter and not settings.urls:
        # Room for the adapters of three versions in a server that is started.
        names = " ".join(cast("list[str]", adapter["target_modules"]))
        flags = (
            f"--enable-lora --max-lora-rank {adapter['r']} --max-loras-per-batch 3 "
            f"--lora-target-modules {names}"
        )
        if SGLANG.require().flavour == "cpu":
            flags += " --lora-backend torch_native"
        arguments = {"extra_args": f"{config.sglang.extra_args} {flags}".strip()}
        sglang = config.sglang.model_copy(update=arguments)
        config = config.model_copy(update={"sglang": sglang})
    return SglangEngine(
        settings.urls or [start(config, folder, logs or default_cache_dir() / "logs")],
        vocab_size=vocab_size(folder),
        context_length=context_length,
        transport=transport,
        pause=settings.pause,
        restarts=settings.restarts,
        experts=experts_per_token(folder),
        timeout_s=config.timeout_s,
        deadline_s=deadline_s,
    )
