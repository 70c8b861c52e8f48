"""Sandboxes for code without an event loop: one loop, in a thread of its own, runs them all."""

import asyncio
import functools
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from agentrl.sandboxes.base import Sandbox, Snapshot
from agentrl.sandboxes.choose import make_sandbox
from agentrl.sandboxes.session import Session, SessionKind
from agentrl.sandboxes.types import Entry, ExecResult, SandboxOptions

T = TypeVar("T")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="agentrl-sandboxes", daemon=True).start()
    return loop


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, from the loop of the sync sandboxes."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class SyncSandbox:
    """A sandbox whose methods block; `sandbox` is the one behind it."""

    def __init__(self, options: SandboxOptions | None = None) -> None:
        self.sandbox: Sandbox = make_sandbox(options)

    def start(self) -> Self:
        """As `Sandbox.start`."""
        run_sync(self.sandbox.start())
        return self

    def close(self) -> None:
        """As `Sandbox.close`."""
        run_sync(self.sandbox.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def exec(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
    ) -> ExecResult:
        """As `Sandbox.exec`."""
        call = self.sandbox.exec(cmd, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s)
        return run_sync(call)

    def read_file(self, path: str) -> bytes:
        """As `Sandbox.read_file`."""
        return run_sync(self.sandbox.read_file(path))

    def write_file(self, path: str, data: bytes) -> None:
        """As `Sandbox.write_file`."""
        run_sync(self.sandbox.write_file(path, data))

    def list_dir(self, path: str = "") -> tuple[Entry, ...]:
        """As `Sandbox.list_dir`."""
        return run_sync(self.sandbox.list_dir(path))

    def upload(self, source: str | Path, target: str = "") -> None:
        """As `Sandbox.upload`."""
        run_sync(self.sandbox.upload(source, target))

    def download(self, source: str, target: str | Path) -> None:
        """As `Sandbox.download`."""
        run_sync(self.sandbox.download(source, target))

    def snapshot(self) -> Snapshot:
        """As `Sandbox.snapshot`."""
        return run_sync(self.sandbox.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        """As `Sandbox.restore`."""
        run_sync(self.sandbox.restore(snapshot))

    def reset(self) -> None:
        """As `Sandbox.reset`."""
        run_sync(self.sandbox.reset())

    def session(self, kind: SessionKind = "bash") -> "SyncSession":
        """As `Sandbox.session`."""
        return SyncSession(run_sync(self.sandbox.session(kind)))


class SyncSession:
    """A session whose methods block."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, code: str, *, timeout_s: float = 60.0) -> ExecResult:
        """As `Session.run`."""
        return run_sync(self._session.run(code, timeout_s=timeout_s))

    def close(self) -> None:
        """As `Session.close`."""
        run_sync(self._session.close())
