"""A LoRA adapter instead of all weights: under a new name for each version.

A request names its adapter and keeps it to its end, so no update touches it, nor its keys and
values; the adapter of an old version is unloaded at the first update that finds it unused.
"""

from collections.abc import Mapping, Sequence
from uuid import uuid4

from agentrl.engine.servers.weights import UPDATE_S, Named, call_each
from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.weights.bucket import buckets
from agentrl.engine.sglang.weights.transport import CheckedWeights, Target
from agentrl.errors import EngineError


class AdapterTransport(CheckedWeights):
    """Loads adapters into servers that have `--enable-lora`, with their rank and modules.

    Sources yield what `adapter_model.safetensors` holds, under its names.
    """

    def __init__(self, config: Mapping[str, object], *, timeout_s: float = UPDATE_S) -> None:
        """`config` is the content of the adapter's `adapter_config.json`."""
        super().__init__(timeout_s=timeout_s)
        self._config = dict(config)
        self._prefix = f"agentrl-{uuid4().hex[:8]}"  # another run's adapters may be there too

    def adapter(self, version: int) -> str:
        """The name of a version."""
        return f"{self._prefix}-{version}"

    async def send(
        self, targets: Sequence[Target], named: Named, version: int, *, flush: bool
    ) -> Sequence[EngineError | None]:
        """Load the adapter; nothing need be flushed, since prefixes are kept apart by adapter."""
        (bucket,) = buckets(named)
        text = bucket.packed()

        async def load(target: Target) -> None:
            control, info = target
            body = {
                "lora_name": self.adapter(version),
                "config_dict": self._config,
                "serialized_named_tensors": [text] * info.tp_size,
                "load_format": "flattened_bucket",
            }
            path = "/load_lora_adapter_from_tensors"
            await control.send(path, body, timeout_s=self._timeout_s)

        return await call_each(targets, load)

    async def confirm(self, control: Control, named: Named, version: int) -> None:
        """The name is the version."""

    async def retire(self, control: Control, version: int) -> None:
        """Unload the adapter of a version that no request uses."""
        body = {"lora_name": self.adapter(version)}
        await control.send("/unload_lora_adapter", body, timeout_s=self._timeout_s)
