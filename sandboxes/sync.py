"""Sandboxes for code without an event loop: one loop, in a thread of its own, runs them all."""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from agentrl.sandboxes.base import Sandbox
from agentrl.sandboxes.choose import make_sandbox
from agentrl.sandboxes.session import Session, SessionKind
from agentrl.sandboxes.types import SandboxOptions

P = ParamSpec("P")
T = TypeVar("T")


@functools.cache
def _start_background_loop_once() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="agentrl-sandboxes", daemon=True).start()
    return loop


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, from the loop of the sync sandboxes."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _start_background_loop_once())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _make_blocking_method(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The method of the same name, awaited."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By its name: a backend may have one of its own.
        own: Callable[P, Coroutine[Any, Any, T]] = getattr(self.behind, method.__name__)
        return run_sync(own(*args, **kwargs))

    return call


class SyncSandbox:
    """A sandbox whose methods block; `behind` is the one that they are of."""

    def __init__(self, options: SandboxOptions | None = None) -> None:
        self.behind: Sandbox = make_sandbox(options)

    def start(self) -> Self:
        """As `Sandbox.start`."""
        run_sync(self.behind.start())
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    close = _make_blocking_method(Sandbox.close)
    exec = _make_blocking_method(Sandbox.exec)
    read_file = _make_blocking_method(Sandbox.read_file)
    write_file = _make_blocking_method(Sandbox.write_file)
    read_files = _make_blocking_method(Sandbox.read_files)
    write_files = _make_blocking_method(Sandbox.write_files)
    list_dir = _make_blocking_method(Sandbox.list_dir)
    upload = _make_blocking_method(Sandbox.upload)
    download = _make_blocking_method(Sandbox.download)
    snapshot = _make_blocking_method(Sandbox.snapshot)
    restore = _make_blocking_method(Sandbox.restore)
    reset = _make_blocking_method(Sandbox.reset)

    def session(self, kind: SessionKind = "bash") -> "SyncSession":
        """As `Sandbox.session`."""
        return SyncSession(run_sync(self.behind.session(kind)))


class SyncSession:
    """A session whose methods block."""

    def __init__(self, session: Session) -> None:
        self.behind = session

    @property
    def is_running(self) -> bool:
        """As `Session.is_running`."""
        return self.behind.is_running

    run = _make_blocking_method(Session.run)
    close = _make_blocking_method(Session.close)
