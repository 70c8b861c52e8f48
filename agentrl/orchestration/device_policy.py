"""Whose turn it is: how engine and trainer make way for each other around an update.

with update_turn(): ── update ── before_publish ── publish ──▶ the engine samples again
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from agentrl.engine import Engine
from agentrl.engine.memory import MEMORY_TAGS, MemoryTag
from agentrl.orchestration.config import RunConfig
from agentrl.trainer.protocol import Trainer

_CACHE: tuple[MemoryTag, ...] = ("kv_cache", "cuda_graph")


class DevicePolicy(Protocol):
    """Makes room for an update, and afterwards for the engine."""

    publishes_always: bool
    """Whether the engine needs the weights although an update has changed nothing."""

    def update_turn(self) -> AbstractAsyncContextManager[None]:
        """The engine does not sample inside: the update may change its very parameters."""
        ...

    async def before_publish(self) -> None:
        """Make the engine able to take weights."""
        ...


class Apart:
    """Each has memory of its own, or both have the same weights in one process."""

    publishes_always = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def update_turn(self) -> AsyncGenerator[None]:
        """After a failure the engine goes on."""
        await self._engine.pause()
        try:
            yield
        finally:
            await self._engine.resume()

    async def before_publish(self) -> None:
        """Nothing stands in the way."""


class InTurn:
    """Both share one device: what is not at work gives its memory up."""

    def __init__(self, engine: Engine, trainer: Trainer, *, keeps_base: bool) -> None:
        self._engine, self._trainer = engine, trainer
        self._keeps_base = keeps_base
        self.publishes_always = not keeps_base

    @asynccontextmanager
    async def update_turn(self) -> AsyncGenerator[None]:
        """After a failure the engine stays as it is: the run ends with the failure."""
        await self._engine.pause()
        await self._engine.release_memory(_CACHE if self._keeps_base else MEMORY_TAGS)
        self._trainer.reclaim_memory()
        yield
        await self._engine.resume_memory(_CACHE)
        await self._engine.resume()

    async def before_publish(self) -> None:
        """Give the trainer's memory to the engine's weights."""
        self._trainer.release_memory()
        if not self._keeps_base:
            await self._engine.resume_memory(["weights"])


def make_device_policy(config: RunConfig, engine: Engine, trainer: Trainer) -> DevicePolicy:
    """The policy that a configuration asks for."""
    if not config.engine.share_device:
        return Apart(engine)
    lora = config.trainer.lora
    # Adapters come beside a base that nobody would bring again.
    return InTurn(engine, trainer, keeps_base=bool(lora.rank) and lora.publish == "adapter")
