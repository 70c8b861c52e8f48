"""Where the code of one episode runs, and what becomes of it at the end.

Sync code runs on the episode's own thread, which starts with the first of it; async code runs in
the event loop. `close` runs the teardown and closes the resources, each exactly once. If the thread
hangs, it is abandoned and does that itself when it comes back.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar, cast

from agentrl.aio import OutOfTime, within
from agentrl.envs.declaration import EnvRules
from agentrl.errors import EnvironmentFault, EpisodeError
from agentrl.tools import AbandonedThreads, EpisodeThread, user_code

Hook = Callable[[], object | Awaitable[object]]

_log = logging.getLogger(__name__)
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
        self._register_close_callback(lambda: manager.__exit__(None, None, None))
        return value

    async def enter_async_context(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter and keep; returns what `async with` would bind."""
        value = await manager.__aenter__()
        self._register_close_callback(lambda: manager.__aexit__(None, None, None))
        return value

    def push(self, manager: AbstractContextManager[object]) -> None:
        """Keep something that is entered already; only its exit is left to do."""
        self._register_close_callback(lambda: manager.__exit__(None, None, None))

    def callback(
        self,
        function: Callable[P, object | Awaitable[object]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call the function at the end; it may be async."""
        self._register_close_callback(lambda: function(*args, **kwargs))

    def pop(self) -> Exit | None:
        """Take away what is to be closed next."""
        return self._exits.pop() if self._exits else None

    def _register_close_callback(self, close: Callable[[], object | Awaitable[object]]) -> None:
        self._exits.append(Exit(close, threading.get_ident()))


class World:
    """The running side of one episode."""

    def __init__(self, name: str, census: AbandonedThreads, rules: EnvRules) -> None:
        self.resources = Resources()
        self.abandoned = False
        """True if the thread hangs for good: nothing of this world may be looked at any more."""
        self._name = name
        self._census = census
        self._rules = rules
        self._thread: EpisodeThread | None = None
        self._doing = name
        """What the thread was last asked to do."""
        self._teardown: tuple[str, Hook] | None = None

    def owe_teardown(self, hook: Hook) -> None:
        """From now on `close` begins with this hook."""
        self._teardown = ("teardown", hook)

    async def call_sync(
        self, what: str, function: Callable[[], object], timeout_s: float
    ) -> object:
        """Run on the episode's thread; TimeoutError if the call goes on alone."""
        self._doing = f"{self._name}: {what}"
        if self._thread is None:
            self._thread = EpisodeThread(f"agentrl-{self._name}")
        return await self._thread.call(function, timeout_s)

    async def call_hook(self, what: str, hook: Hook) -> object:
        """Run a hook of the user, sync or async, under the environment's hook timeout.

        Raises:
            EnvironmentFault: It raised or ran out of time.
        """

        def guarded() -> object:
            with user_code(what):
                return hook()

        if inspect.iscoroutinefunction(hook):
            return await self._run_hook_in_event_loop(what, hook)
        try:
            result = await self.call_sync(what, guarded, self._rules.hook_timeout_s)
        except TimeoutError:
            raise self._make_hook_timeout_fault(what) from None
        if inspect.isawaitable(result):
            return await self._run_hook_in_event_loop(what, lambda: result)
        return result

    async def settle(self) -> bool:
        """Wait a grace time for a hanging call; False if the thread had to be abandoned.

        Raises:
            BreakerTripped: Too many threads are abandoned.
        """
        if self.abandoned:
            return False
        thread = self._thread
        if thread is None or await thread.wait_idle(self._rules.grace_s):
            return True
        if not thread.abandon(self._close_after_abandoned_call):
            return True
        self.abandoned = True
        self._census.abandon(self._doing)
        return False

    async def close(self) -> None:
        """Tear down and close everything; a second call goes on where the first was cut off.

        Raises:
            EnvironmentFault: The first thing that failed to close; the others are closed.
        """
        if not await self.settle():
            return
        faults: list[EpisodeError] = []
        while step := self._pop_next_cleanup():
            what, close, on_thread = step
            try:
                if on_thread:
                    await self.call_hook(what, close)
                else:
                    await self._run_hook_in_event_loop(what, close)
            except EpisodeError as fault:
                faults.append(fault)
                if not await self.settle():
                    break
        if self._thread is not None and not self.abandoned:
            self._thread.stop()
            self._thread = None
        if faults:
            raise faults[0]

    async def _run_hook_in_event_loop(self, what: str, hook: Hook) -> object:
        try:
            return await within(self._rules.hook_timeout_s, _run_hook_here(what, hook))
        except OutOfTime:
            raise self._make_hook_timeout_fault(what) from None

    def _make_hook_timeout_fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(f"{what} did not end within {self._rules.hook_timeout_s:g} s")

    def _pop_next_cleanup(self) -> tuple[str, Hook, bool] | None:
        """What is to be closed next, and whether that is the episode thread's to do."""
        if self._teardown is not None:
            what, hook = self._teardown
            self._teardown = None
            return what, hook, True
        found = self.resources.pop()
        if found is None:
            return None
        on_thread = self._thread is not None and found.thread == self._thread.ident
        return "closing a resource", found.close, on_thread

    def _close_after_abandoned_call(self) -> None:
        """On the abandoned thread, after its call came back."""
        asyncio.run(self._run_remaining_cleanups())
        self._census.come_back(self._doing)

    async def _run_remaining_cleanups(self) -> None:
        while step := self._pop_next_cleanup():
            try:
                await _run_hook_here(step[0], step[1])
            except EpisodeError as fault:
                _log.warning("%s, after it hung: %s", self._doing, fault)


async def _run_hook_here(what: str, hook: Hook) -> object:
    """Run on this thread."""
    with user_code(what):
        result = hook()
        if inspect.isawaitable(result):
            return await cast("Awaitable[object]", result)
        return result
