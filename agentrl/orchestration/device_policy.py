"""How engine and trainer make way for each other around an update."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agentrl.engine import Engine
from agentrl.engine.protocol import MEMORY_TAGS, MemoryTag
from agentrl.orchestration.config import RunConfig
from agentrl.trainer.protocol import Trainer

_CACHE: tuple[MemoryTag, ...] = ("kv_cache", "cuda_graph")


class DevicePolicy:
    """Makes room for an update, and afterwards for the engine, where both share one device.

    Otherwise each has memory of its own, or both have the same weights in one process.
    """

    def __init__(self, config: RunConfig, engine: Engine, trainer: Trainer) -> None:
        lora = config.trainer.lora
        self._engine, self._trainer = engine, trainer
        self._is_shared = config.engine.share_device
        self._is_ahead = bool(config.async_.staleness)
        # Adapters come beside a base that nobody would bring again.
        self._keeps_base = bool(lora.rank) and lora.publish == "adapter"
        self.publishes_always = self._is_shared and not self._keeps_base
        """Whether the engine needs the weights although an update has changed nothing."""

    @asynccontextmanager
    async def update_turn(self) -> AsyncGenerator[None]:
        """The engine does not sample inside: the update may change its very parameters.

        After a failure it goes on; on a shared device it stays as it is, since the run ends. Where
        sampling may run ahead its weights are its own, and it stands still while it takes others.
        """
        if self._is_ahead:
            yield
            return
        await self._engine.pause()
        if not self._is_shared:
            try:
                yield
            finally:
                await self._engine.resume()
            return
        await self._engine.release_memory(_CACHE if self._keeps_base else MEMORY_TAGS)
        self._trainer.reclaim_memory()
        yield
        await self._engine.resume_memory(_CACHE)
        await self._engine.resume()

    async def before_publish(self) -> None:
        """Give the trainer's memory to the engine's weights."""
        if not self._is_shared:
            return
        self._trainer.release_memory()
        if not self._keeps_base:
            await self._engine.resume_memory(["weights"])
