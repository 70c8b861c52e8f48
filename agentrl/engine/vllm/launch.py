"""Servers of vLLM for a run: started at once, of use once they were waited for and checked."""

from pathlib import Path

from agentrl.engine.config import EngineConfig
from agentrl.engine.local.models.resolve import default_cache_dir
from agentrl.engine.servers.launch import vocab_size
from agentrl.engine.servers.weight_files import MEMORY
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.server import start
from agentrl.engine.vllm.weights import FileTransport


def start_servers(
    config: EngineConfig,
    folder: Path,
    *,
    context_length: int,
    logs: Path | None = None,
    deadline_s: float = 30.0,
) -> VllmEngine:
    """Start a server for the model, its log in `logs` or the cache, or take those that run.

    One that gives no sign of life for `deadline_s` counts as gone.
    """
    settings = config.vllm
    in_memory = settings.transport == "shared" or bool(config.relay_urls)
    return VllmEngine(
        settings.urls or [start(config, folder, logs or default_cache_dir() / "logs")],
        vocab_size=vocab_size(folder),
        context_length=context_length,
        transport=FileTransport(MEMORY if in_memory else None, config.relay_urls),
        pause=settings.pause,
        restarts=settings.restarts,
        timeout_s=config.timeout_s,
        deadline_s=deadline_s,
    )
