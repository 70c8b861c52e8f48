"""One running command, wherever it runs, and how it becomes a result."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

import psutil

from agentrl.sandboxes.capture import Capture
from agentrl.sandboxes.errors import SandboxDied
from agentrl.sandboxes.types import Command, ExecResult

T = TypeVar("T")
Sink: TypeAlias = Callable[[int, bytes], None]
"""Takes output as it comes: 1 or 2 for the stream, and the bytes. It must not let them pile up."""

DRAIN_S: Final = 0.2
"""A command that ended may leave a child that holds its output open: so long it is waited for."""
KILL_S: Final = 10.0
_WRAPPERS: Final = 2
"""bwrap, and the first process of its namespace."""


async def in_thread(function: Callable[[], T], threads: Executor | None = None) -> T:
    """The function's result; who is cancelled waits for its end, so that its work can be undone."""
    loop = asyncio.get_running_loop()
    call = loop.run_in_executor(threads, function)
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        raise


class Process(Protocol):
    """A command that runs."""

    def write(self, data: bytes) -> None:
        """Send to its standard input; nothing happens if it is gone."""
        ...

    def close_stdin(self) -> None:
        """End its standard input."""
        ...

    async def wait(self) -> int:
        """Its exit code, once it has ended and its output has come; 128+N after signal N.

        Raises:
            SandboxDied: The sandbox ended under it.
        """
        ...

    async def interrupt(self) -> None:
        """Send SIGINT to what a session's shell or interpreter runs."""
        ...

    async def kill_children(self) -> bool:
        """Kill what a session's shell or interpreter runs, not itself; False if that is nothing."""
        ...

    async def kill(self) -> None:
        """End it with all that it started."""
        ...


async def run(
    opened: Callable[[Sink], Awaitable[Process]],
    command: Command,
    was_oom: Callable[[int], Awaitable[bool]],
) -> ExecResult:
    """Run a command to its end or its timeout; whatever happens, nothing of it goes on.

    Args:
        opened: starts it.
        command: its input, timeout and limit of output.
        was_oom: asked after an exit code other than 0: was a process killed for memory?
    """
    streams = (Capture(command.max_output), Capture(command.max_output))
    started = time.monotonic()
    process = await opened(lambda fd, data: streams[fd - 1].feed(data))
    code: int | None = None
    ended = False
    try:
        process.write(command.stdin)
        process.close_stdin()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(command.timeout_s):
                code = await process.wait()
        ended = code is not None
    finally:
        if not ended:
            await asyncio.shield(process.kill())
    duration = time.monotonic() - started
    out, err = streams
    killed = code is not None and code != 0 and await was_oom(code)
    # Shells report a child's signal as 128 and its number.
    signalled = code is not None and 128 < code <= 128 + signal.NSIG
    exited: Literal["signalled", "exited"] = "signalled" if signalled else "exited"
    return ExecResult(
        status="timeout" if code is None else "oom" if killed else exited,
        exit_code=code,
        stdout=out.data(),
        stderr=err.data(),
        stdout_total=out.total,
        stderr_total=err.total,
        stdout_truncated=out.truncated,
        stderr_truncated=err.truncated,
        duration_s=duration,
    )


class LocalProcess(asyncio.SubprocessProtocol):
    """A child process in a session of its own."""

    def __init__(self, sink: Sink, *, wrapped: bool = False) -> None:
        self._sink = sink
        self._wrapped = wrapped
        self._ended = asyncio.Event()
        self._closed = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        sink: Sink,
        *,
        cwd: str,
        env: dict[str, str],
        pass_fds: Sequence[int] = (),
        wrapped: bool = False,
    ) -> "LocalProcess":
        """Start a program; the error is an OSError.

        Args:
            argv: the program and its arguments.
            sink: takes its output.
            cwd: where it starts.
            env: all of its environment.
            pass_fds: descriptors that it inherits.
            wrapped: it only waits for the program that matters, so interrupts are not for it.
        """
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # As in what a script starts with `&`; a child would inherit that and hear no interrupt.
            argv = ("/usr/bin/env", "--default-signal=INT", *argv)
        loop = asyncio.get_running_loop()
        _, process = await loop.subprocess_exec(
            lambda: cls(sink, wrapped=wrapped),
            *argv,
            cwd=cwd,
            env=env,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        return process

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        for fd in (1, 2):
            pipe = transport.get_pipe_transport(fd)
            assert pipe is not None
            pipe.set_protocol(_Pipe(self._sink, fd, pipe.get_protocol()))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Hand on what came before `connection_made`."""
        self._sink(fd, data)

    def process_exited(self) -> None:
        """The program itself has ended."""
        self._ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended and its pipes are closed."""
        self._ended.set()
        self._closed.set()

    # What the sandbox calls.

    @property
    def pid(self) -> int:
        """Of the program itself."""
        return self._require_open_transport().get_pid()

    def write(self, data: bytes) -> None:
        """Send to its standard input."""
        pipe = self._require_open_transport().get_pipe_transport(0)
        if data and isinstance(pipe, asyncio.WriteTransport) and not pipe.is_closing():
            pipe.write(data)

    def close_stdin(self) -> None:
        """End its standard input, after what was written."""
        pipe = self._require_open_transport().get_pipe_transport(0)
        if isinstance(pipe, asyncio.WriteTransport):
            pipe.close()

    async def wait(self) -> int:
        """Its exit code; a pipe that somebody else holds open is waited for only briefly."""
        await self._ended.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._closed.wait()
        self._require_open_transport().close()
        code = self._require_open_transport().get_returncode()
        assert code is not None
        return code if code >= 0 else 128 - code

    async def interrupt(self) -> None:
        """Send SIGINT to it and the processes below it; if it is wrapped, to what matters."""
        with contextlib.suppress(psutil.Error, ProcessLookupError, IndexError):
            this = self._find_process_below_wrappers()
            group = os.getpgid(this.pid)
            below = this.children(recursive=True)
            # All at once: a shell takes no notice of an interrupt that its child did not die of.
            os.killpg(group, signal.SIGINT)
            for process in below:
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    if os.getpgid(process.pid) != group:
                        process.send_signal(signal.SIGINT)

    async def kill_children(self) -> bool:
        """Kill the processes below it; if it is wrapped, below what matters."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error, IndexError):
            found = self._find_process_below_wrappers().children(recursive=True)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return bool(found)

    def is_stopped(self) -> bool:
        """True if it, or the first process of its namespace, was stopped: nothing inside can."""
        with contextlib.suppress(psutil.Error):
            this = psutil.Process(self.pid)
            return any(p.status() == psutil.STATUS_STOPPED for p in (this, *this.children()))
        return False

    def _find_process_below_wrappers(self) -> psutil.Process:
        this = psutil.Process(self.pid)
        for _ in range(_WRAPPERS * self._wrapped):
            this = this.children()[0]
        return this

    async def kill(self) -> None:
        """Kill its process group, and wait for its end."""
        self.send_kill()
        try:
            async with asyncio.timeout(KILL_S):
                await self.wait()
        except TimeoutError:
            raise SandboxDied(f"process {self.pid} did not end when it was killed") from None

    def send_kill(self) -> None:
        """Kill its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _require_open_transport(self) -> asyncio.SubprocessTransport:
        assert self._transport is not None
        return self._transport


class _Pipe(asyncio.Protocol):
    """Hands on output at once; a subprocess transport would take one more turn of the loop."""

    def __init__(self, sink: Sink, fd: int, of_transport: asyncio.BaseProtocol) -> None:
        self._sink = sink
        self._fd = fd
        self._of_transport = of_transport

    def data_received(self, data: bytes) -> None:
        """Hand on."""
        self._sink(self._fd, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport of the process wants to know."""
        self._of_transport.connection_lost(exc)
