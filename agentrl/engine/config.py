"""The settings of an engine."""

from typing import Literal

from pydantic import Field

from agentrl.config import Config
from agentrl.config.anchor import Reference


def _split_addresses(text: str) -> tuple[str, ...]:
    return tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())


class ServerConfig(Config):
    """Servers of one kind: where they are, or how one is started."""

    url: str = Field(
        default="",
        description="running servers to use, such as http://a:30000,http://b:30000; empty: one is "
        "started",
    )
    tp_size: int = Field(default=1, ge=1, description="tensor-parallel size of a started server")
    dp_size: int = Field(default=1, ge=1, description="data-parallel size of a started server")
    memory_fraction: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of a GPU's memory for weights and cache of a started server",
    )
    kv_tokens: int = Field(
        default=0,
        ge=0,
        description="tokens that the cache of a started server holds; 0: 65,536 on a CPU, else "
        "what memory allows",
    )
    extra_args: str = Field(
        default="", description="more arguments for a started server, as on its command line"
    )
    pause: Literal["retract", "abort", "in_place"] = Field(
        default="retract",
        description="what an update does to running requests; retract: their prefix is computed "
        "again; abort: they end and are sent again with their tokens; in_place: they go on with "
        "the keys and values of the old weights",
    )
    restarts: int = Field(
        default=3,
        ge=0,
        description="how often a started server that ended is started again before it takes "
        "another update",
    )
    start_timeout_s: float = Field(
        default=600.0, gt=0, description="seconds that a started server may take to be ready"
    )

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers of `url`."""
        return _split_addresses(self.url)


class SglangConfig(ServerConfig):
    """SGLang servers."""

    transport: Literal["tensor", "shared", "disk", "distributed"] = Field(
        default="tensor", description="how new weights reach the servers"
    )


class VllmConfig(ServerConfig):
    """vLLM servers."""

    transport: Literal["shared", "disk"] = Field(
        default="shared",
        description="where the file with new weights lies; shared: in memory; disk: in the "
        "temporary folder",
    )


class EngineConfig(Config):
    """How completions are sampled; the local engine runs inside the process."""

    kind: Reference = Field(
        default="local",
        description="which engine samples: local, sglang, vllm, pkg.mod:Name or path/file.py:Name",
    )
    sglang: SglangConfig = Field(default=SglangConfig(), description="SGLang servers")
    vllm: VllmConfig = Field(default=VllmConfig(), description="vLLM servers")
    relays: str = Field(
        default="",
        description="addresses of `agentrl engine relay`, one on each host of running servers, as "
        "in http://a:31000,http://b:31000; each host then gets new weights once, in a file in its "
        "memory, whatever the servers' transport",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="number format of the weights; auto: that of the model, or float32 on a CPU "
        "that cannot multiply bfloat16",
    )
    share_device: bool = Field(
        default=False,
        description="take turns with the trainer on one device: while it works, the engine's cache "
        "and own weights are given up, and while the engine samples, the optimizer's state",
    )
    slots: int = Field(default=128, ge=1, le=4096, description="most sequences kept at once")
    context_length: int = Field(
        default=0, ge=0, description="most tokens of prompt and completion; 0: as the model allows"
    )
    prefill_tokens: int = Field(
        default=512, ge=16, description="most prompt tokens computed between two sampled tokens"
    )
    threads: int = Field(
        default=0,
        ge=0,
        description="torch threads of the sampling thread; 0 leaves torch's setting",
    )
    timeout_s: float = Field(
        default=600.0,
        gt=0,
        description="seconds after which an unanswered request is an engine error",
    )
    share_weights: bool | Literal["auto"] = Field(
        default="auto",
        description="sample with the trainer's own parameters; auto: where the dtypes agree",
    )

    @property
    def relay_urls(self) -> tuple[str, ...]:
        """Those of `relays`."""
        return _split_addresses(self.relays)

    @property
    def name(self) -> str:
        """Which engine samples: a server's address says so too."""
        return "sglang" if self.sglang.urls else "vllm" if self.vllm.urls else self.kind
