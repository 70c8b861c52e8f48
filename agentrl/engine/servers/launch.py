"""Servers for a run: of use once they were waited for and checked."""

from pathlib import Path
from typing import cast

from agentrl.engine.config import ServerConfig
from agentrl.engine.local.models.files import read_json
from agentrl.engine.protocol import Engine
from agentrl.engine.servers.check import check_server, refuse_unfit_server
from agentrl.engine.servers.engine import ServedEngine
from agentrl.errors import ConfigError
from agentrl.tokens import Tokenizer
from agentrl.weights.source import Trained


async def wait_for_servers(
    engine: Engine,
    settings: ServerConfig,
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
    assert isinstance(engine, ServedEngine)
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
                f"{slot.control.settings}.kv_tokens: the server takes prompts of {taken} tokens at "
                f"most, but a sequence may have {longest}; raise it, or lower "
                "rollout.max_context_tokens"
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
