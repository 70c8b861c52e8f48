"""The engine that a configuration asks for: made at once, ready once it was begun.

A server takes longest to start, so it is started first; the model loads meanwhile.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from agentrl.engine import Engine
from agentrl.engine.config import EngineConfig
from agentrl.engine.experts import experts_per_token
from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.check import check_files
from agentrl.engine.local.models.files import read_json
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import default_cache_dir, resolve_model
from agentrl.engine.sglang.check import EngineCheckRow, check_server, refuse
from agentrl.engine.sglang.client import GenerateClient
from agentrl.engine.sglang.control import Control, Keys
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.install import require_installed
from agentrl.engine.sglang.router import ServerState
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import AdapterTransport, make_transport
from agentrl.errors import ConfigError, EngineError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.kinds import EngineSetup, Trained
from agentrl.orchestration.started import Started, nothing
from agentrl.tokens import Tokenizer
from agentrl.trainer.logprobs import sequence_logprobs
from agentrl.trainer.lora import adapter_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def local_engine(model: "PreTrainedModel", config: RunConfig) -> Started:
    """The engine in this process; of merged LoRA weights it has a copy of its own."""
    settings = config.engine
    if config.trainer.lora.rank and config.trainer.lora.publish == "merged":
        settings = settings.model_copy(update={"share_weights": False})
    return Started(engine=LocalEngine(model, settings), begin=nothing)


def start_servers(setup: EngineSetup) -> SglangEngine:
    """Start a server for the model, its log in `logs` or the cache, or take those that run.

    One whose adapters are trained gets room for them. Raises ConfigError for files that are not
    whole: a server may fill what they lack with random numbers.
    """
    config, folder = setup.config, setup.folder
    check_files(folder)
    engine_config, transport = config.engine, make_transport(config.engine.sglang.transport)
    lora = config.trainer.lora
    if setup.is_trained and lora.rank and lora.publish == "adapter":
        adapter = adapter_config(folder, lora, served=True)
        engine_config, transport = _with_adapters(engine_config, adapter), AdapterTransport(adapter)
    settings = engine_config.sglang
    logs = setup.logs or default_cache_dir() / "logs"
    return SglangEngine(
        settings.urls or [start(engine_config, folder, logs)],
        vocab_size=_vocab_size(folder),
        context_length=setup.context_length,
        transport=transport,
        pause=settings.pause,
        restarts=settings.restarts,
        experts=experts_per_token(folder),
        timeout_s=config.engine.timeout_s,
    )


async def begin_servers(engine: Engine, setup: EngineSetup, trainer: Trained | None) -> None:
    """Wait for the servers and refuse what would bias training; `trainer`: whose weights they get.

    Without one they keep those that they have.
    """
    assert isinstance(engine, SglangEngine)
    config = setup.config
    weights = None if trainer is None else trainer.weights()
    await engine.start(ready_s=config.engine.sglang.start_timeout_s, weights=weights)
    for slot in engine.slots:
        rows = await check_server(
            slot,
            setup.codec.tokenizer,
            vocab_size=engine.vocab_size,
            reference=None if trainer is None else trainer.logprobs,
            in_place=config.engine.sglang.pause == "in_place",
        )
        refuse(slot.url, rows)
        longest = slot.info.longest_prompt if slot.info else 0
        needed = config.rollout.max_context_tokens or engine.context_length
        if longest < needed:
            raise ConfigError(
                f"engine.sglang.kv_tokens: the server takes prompts of {longest} tokens at most, "
                f"but a sequence may have {needed}; raise it, or lower rollout.max_context_tokens"
            )


def _with_adapters(config: EngineConfig, adapter: Mapping[str, object]) -> EngineConfig:
    """Room for the adapters of three versions in a server that is started."""
    if config.sglang.urls:
        return config
    names = " ".join(cast("list[str]", adapter["target_modules"]))
    flags = (
        f"--enable-lora --max-lora-rank {adapter['r']} --max-loras-per-batch 3 "
        f"--lora-target-modules {names}"
    )
    if require_installed().flavour == "cpu":
        flags += " --lora-backend torch_native"
    sglang = config.sglang.model_copy(
        update={"extra_args": f"{config.sglang.extra_args} {flags}".strip()}
    )
    return config.model_copy(update={"sglang": sglang})


def _vocab_size(folder: Path) -> int:
    content = cast("dict[str, object]", read_json(folder / "config.json"))
    size = content.get("vocab_size")
    if not isinstance(size, int):
        raise ConfigError(f"{folder / 'config.json'}: names no vocab_size; choose another model")
    return size


async def check_url(url: str, model: str | None) -> list[EngineCheckRow]:
    """The rows of `agentrl engine check`: a running server against a model on the CPU.

    Raises:
        ConfigError: there is no SGLang server, or no folder of its model here.
    """
    keys = Keys.given()
    control = Control(url, keys)
    try:
        try:
            info = await control.info()
        except EngineError as error:
            raise ConfigError(str(error)) from error
        folder = resolve_model(model or info.model_path)
        trained = load_model(folder)
        size = _vocab_size(folder)
        client = GenerateClient(url, keys.headers(), vocab_size=size)
        try:
            return await check_server(
                ServerState(client=client, control=control),
                Tokenizer.load(folder),
                vocab_size=size,
                reference=partial(sequence_logprobs, trained),
            )
        finally:
            await client.aclose()
    finally:
        await control.aclose()
