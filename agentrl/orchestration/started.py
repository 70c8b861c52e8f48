"""An engine, and what to await before its first use."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentrl.engine import Engine

Begin = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine that is made, but need not be ready."""

    engine: Engine
    begin: Begin


async def nothing() -> None:
    """Nothing to wait for."""
