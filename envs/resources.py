"""What an episode holds open, and the order in which it is closed."""

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exit:
    """One thing to close."""

    close: Callable[[], object | Awaitable[object]]
    thread: int
    """The thread that opened it: sqlite and friends must be closed there."""


class Resources:
    """Like an ExitStack: what is entered here is closed in reverse order on every path."""

    def __init__(self) -> None:
        self._exits: list[Exit] = []

    def enter_context(self, manager: AbstractContextManager[T]) -> T:
        """Enter and keep; returns what `with` would bind."""
        value = manager.__enter__()
        self._add_close(lambda: manager.__exit__(None, None, None))
        return value

    async def enter_async_context(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter and keep; returns what `async with` would bind."""
        value = await manager.__aenter__()
        self._add_close(lambda: manager.__aexit__(None, None, None))
        return value

    def push(self, manager: AbstractContextManager[object]) -> None:
        """Keep something that is entered already; only its exit is left to do."""
        self._add_close(lambda: manager.__exit__(None, None, None))

    def callback(
        self,
        function: Callable[P, object | Awaitable[object]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call the function at the end; it may be async."""
        self._add_close(lambda: function(*args, **kwargs))

    def pop(self) -> Exit | None:
        """Take away what is to be closed next."""
        return self._exits.pop() if self._exits else None

    def _add_close(self, close: Callable[[], object | Awaitable[object]]) -> None:
        self._exits.append(Exit(close, threading.get_ident()))
