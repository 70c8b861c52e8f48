"""Servers of SGLang for a run: started at once, of use once they were waited for and checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.experts import experts_per_token
from agentrl.engine.local.models.files import read_json
from agentrl.engine.local.models.resolve import default_cache_dir
from agentrl.engine.protocol import Engine
from agentrl.engine.servers.check import check_server, refuse_unfit_server
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.install import SGLANG
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import AdapterTransport, make_transport
from agentrl.errors import ConfigError
from agentrl.tokens import Tokenizer
from agentrl.weights.source import Trained


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
    transport = AdapterTransport(adapter) if adapter else make_transport(settings.transport)
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


async def wait_for_servers(
    engine: Engine,
    settings: SglangConfig,
    tokenizer: Tokenizer,
    *,
    longest: int,
    trainer: Trained | None,
    measures_prefill: bool = False,
) -> None:
    """Wait for the servers and refuse what would bias training.

    Args:
        engine: what `start_servers` gave.
        settings: those that it was started with.
        tokenizer: the model's.
        longest: tokens that a sequence may have.
        trainer: whose weights they get; without one they keep those that they have.
        measures_prefill: time how long a full cache takes, for a concurrency that follows it.
    """
    assert isinstance(engine, SglangEngine)
    weights = None if trainer is None else trainer.weights()
    await engine.start(ready_s=settings.start_timeout_s, weights=weights)
    for slot in engine.slots:
        rows = await check_server(
            slot,
            tokenizer,
            vocab_size=engine.vocab_size,
            reference=None if trainer is None else trainer.logprobs,
            in_place=settings.pause == "in_place",
        )
        refuse_unfit_server(slot, rows)
        taken = slot.info.longest_prompt if slot.info else 0
        if taken < longest:
            raise ConfigError(
                f"engine.sglang.kv_tokens: the server takes prompts of {taken} tokens at most, "
                f"but a sequence may have {longest}; raise it, or lower rollout.max_context_tokens"
            )
    if measures_prefill:
        await engine.measure_prefill()


def vocab_size(folder: Path) -> int:
    """The rows of the model's matrix; raises ConfigError if its folder does not say."""
    content = cast("dict[str, object]", read_json(folder / "config.json"))
    size = content.get("vocab_size")
    if not isinstance(size, int):
        raise ConfigError(f"{folder / 'config.json'}: names no vocab_size; choose another model")
    return size
