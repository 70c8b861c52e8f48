"""From plain code into async code, for Gymnasium's sync calls."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class SyncBridge:
    """Runs coroutines to their end on an event loop of its own, which it keeps until `close`."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """The coroutine's result; refused where an event loop is running already."""
        if _loop_is_running():
            coroutine.close()
            raise RuntimeError(
                "reset, step and close were called inside a running event loop; await areset, "
                "astep and aclose instead"
            )
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine)

    def close(self) -> None:
        """End the loop; a second call does nothing."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
