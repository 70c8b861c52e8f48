"""The kinds of engines: what has to be known before one is there, and how it is started.

    kind ─ check ─▶ start ─▶ engine ─ (the model loads) ─ begin ─▶ ready

A fourth kind is a package with a class like these, and a line in `ENGINES`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, cast

from agentrl.boundary import user_code
from agentrl.config.seams import Seam, instance_of
from agentrl.engine import Engine
from agentrl.engine.config import EngineConfig, ServerConfig
from agentrl.engine.protocol import Footprint
from agentrl.engine.servers.control import Keys
from agentrl.engine.servers.engine import ServedEngine
from agentrl.engine.servers.install import Product
from agentrl.engine.servers.process import HOST, Server
from agentrl.engine.servers.weight_files import check_relays
from agentrl.engine.sglang import server as sglang
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.install import SGLANG
from agentrl.engine.vllm import server as vllm
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.install import VLLM
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import BoundEnv, Overrides
from agentrl.rollout import Codec
from agentrl.weights.source import Trained

_KV_TOKENS: Final = 65_536
"""What a server needs to sample briskly, if its cache has no size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """What an engine is started with."""

    config: RunConfig
    folder: Path
    """The model."""
    codec: Codec
    envs: Sequence[BoundEnv]
    context_length: int
    """Most tokens of a prompt and its completion."""
    logs: Path | None = None
    """Where the log of a server goes; None: into the cache."""
    is_trained: bool = False
    """True if it will get new weights; otherwise those of `folder` are all."""


class EngineKind:
    """One kind of engines; a subclass says how it is started."""

    in_process: ClassVar[bool] = False
    """It is made around the trainer's own model, and not started."""
    honours_seeds: ClassVar[bool] = False
    samples_all_rows: ClassVar[bool] = True
    """It samples rows of the model's matrix that belong to no token too, so the trainer has to."""
    loads_adapters: ClassVar[bool] = False
    """It keeps adapters beside a base, in the layers that PEFT and SGLang agree on."""
    reserved_tokens: ClassVar[int] = 0
    """Tokens of the model's context that it keeps to itself."""

    def check_settings(self, config: EngineConfig) -> None:
        """Raise ConfigError for what cannot be, whatever the model."""

    def check(self, config: EngineConfig, folder: Path) -> None:
        """Raise ConfigError if it could not be started; a warm start comes in between."""

    def footprint(self, config: EngineConfig, *, rows: int, longest: int) -> Footprint:
        """What it will hold of a device for so many sequences at once."""
        return Footprint(
            longest=longest,
            cached_tokens=min(config.slots, rows) * (longest + 1),
            dtype=config.dtype,
            shares_weights=self.in_process and bool(config.share_weights),
            share_device=config.share_device,
        )

    def start(self, setup: EngineSetup) -> Engine:
        """An engine, which need not be ready yet."""
        raise NotImplementedError

    async def begin(self, engine: Engine, setup: EngineSetup, trainer: Trained | None) -> None:
        """Wait until it is ready; `trainer`: whose weights it has to agree with, if it is there."""


class LocalKind(EngineKind):
    """The engine in this process."""

    in_process = True
    honours_seeds = True
    samples_all_rows = False

    def check_settings(self, config: EngineConfig) -> None:
        """It has no server that a relay could be on the host of."""
        check_relays(config.relay_urls, ())


class ServerKind(EngineKind):
    """Servers, which are started or run already; a subclass says of which kind."""

    product: ClassVar[Product]
    engine: ClassVar[type[ServedEngine]]

    def settings(self, config: EngineConfig) -> ServerConfig:
        """Those of the kind."""
        return cast("ServerConfig", getattr(config, self.product.name))

    def check_settings(self, config: EngineConfig) -> None:
        """Servers and relays are on the same hosts."""
        check_relays(config.relay_urls, self.settings(config).urls)

    def check(self, config: EngineConfig, folder: Path) -> None:
        """Whether it is installed and fits, unless it runs already."""
        if not self.settings(config).urls:
            self.check_startable(config, folder)

    @staticmethod
    def check_startable(config: EngineConfig, model: Path) -> object:
        """Raise ConfigError if no server could start."""
        raise NotImplementedError

    def footprint(self, config: EngineConfig, *, rows: int, longest: int) -> Footprint:
        """That of a server; one that runs already is elsewhere."""
        settings = self.settings(config)
        return Footprint(
            longest=longest,
            cached_tokens=settings.kv_tokens or min(rows * longest, _KV_TOKENS),
            dtype="bfloat16" if config.dtype == "auto" else config.dtype,
            share_device=config.share_device,
            num_devices=0 if settings.urls else settings.tp_size,
        )

    @staticmethod
    def serve(
        config: EngineConfig,
        model: Path,
        logs: Path,
        *,
        port: int = 0,
        host: str = HOST,
        keys: Keys | None = None,
    ) -> Server:
        """Start one server for whoever comes."""
        raise NotImplementedError

    async def begin(self, engine: Engine, setup: EngineSetup, trainer: Trained | None) -> None:
        """Wait for the servers and refuse what would bias training."""
        from agentrl.engine.servers.launch import wait_for_servers

        await wait_for_servers(
            engine,
            self.settings(setup.config.engine),
            setup.codec.tokenizer,
            longest=setup.config.rollout.max_context_tokens or setup.context_length,
            trainer=trainer,
            measures_prefill=setup.config.rollout.concurrency == "auto",
        )


class SglangKind(ServerKind):
    """Servers of SGLang."""

    product = SGLANG
    engine = SglangEngine
    loads_adapters = True
    reserved_tokens = sglang.RESERVED
    check_startable = staticmethod(sglang.check_startable)
    serve = staticmethod(sglang.start)

    def start(self, setup: EngineSetup) -> Engine:
        """Start a server, or take those that run; trained adapters get room in one that starts."""
        from agentrl.engine.local.models.check import check_files  # torch, only now
        from agentrl.engine.sglang.launch import start_servers
        from agentrl.trainer.lora import adapter_config

        check_files(setup.folder)  # a server may fill what they lack with random numbers
        lora, adapter = setup.config.trainer.lora, None
        if setup.is_trained and lora.rank and lora.publish == "adapter":
            adapter = adapter_config(setup.folder, lora, served=True)
        return start_servers(
            setup.config.engine,
            setup.folder,
            context_length=setup.context_length,
            logs=setup.logs,
            adapter=adapter,
            deadline_s=setup.config.fault.deadline_s,
        )


class VllmKind(ServerKind):
    """Servers of vLLM."""

    product = VLLM
    engine = VllmEngine
    check_startable = staticmethod(vllm.check_startable)
    serve = staticmethod(vllm.start)

    def check_settings(self, config: EngineConfig) -> None:
        """It cannot take turns on a device either."""
        super().check_settings(config)
        vllm.check_sharing(config)

    def start(self, setup: EngineSetup) -> Engine:
        """Start a server, or take those that run."""
        from agentrl.engine.local.models.check import check_files  # torch, only now
        from agentrl.engine.vllm.launch import start_servers

        check_files(setup.folder)
        return start_servers(
            setup.config.engine,
            setup.folder,
            context_length=setup.context_length,
            logs=setup.logs,
            deadline_s=setup.config.fault.deadline_s,
        )


SERVERS: Final[Mapping[str, ServerKind]] = {
    kind.product.name: kind for kind in (SglangKind(), VllmKind())
}
"""The kinds that are installed, and that `agentrl engine` serves."""

ENGINES: Final = Seam("engine", {"local": LocalKind, **SERVERS}, "agentrl.engines")


def engine_kind(config: RunConfig, objects: Overrides) -> EngineKind:
    """The kind that a configuration asks for; raises ConfigError if there is none."""
    name = config.engine.name
    label = ENGINES.label(name)
    kind = instance_of(ENGINES.find(objects.get(name) or name), label)
    if not isinstance(kind, EngineKind):
        raise ConfigError(f"{label} is no EngineKind; name a subclass of it")
    return kind


def start_engine(kind: EngineKind, setup: EngineSetup) -> Engine:
    """The engine of a kind, on its way; raises ConfigError if what was started is none."""
    label = ENGINES.label(setup.config.engine.name)
    with user_code(f"{label}: start", fault=ConfigError):
        engine = cast("object", kind.start(setup))
    missing = [
        name for name in ("generate", "update_weights", "aclose") if not hasattr(engine, name)
    ]
    if missing:
        raise ConfigError(
            f"{label}: start gave a {type(engine).__name__} without {', '.join(missing)}, "
            "expected an Engine"
        )
    return cast("Engine", engine)
