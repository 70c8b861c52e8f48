"""`bash` and `python` that keep their state from call to call.

A call's end is marked on standard output by a random token that the call itself is not told. What a
session prints is what its code wants to print: nothing that decides a reward may depend on it.
"""

import asyncio
import contextlib
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, TypeAlias

from agentrl.sandboxes.capture import Capture
from agentrl.sandboxes.errors import SandboxClosed, SandboxDied
from agentrl.sandboxes.process import Process, Sink
from agentrl.sandboxes.types import ExecResult

SessionKind: TypeAlias = Literal["bash", "python"]
GRACE_S: Final = 1.0
"""So long an interrupted call may take to give up; then the session ends."""
_MARK_BYTES: Final = 48
"""More than the longest mark has."""

# Reads a header line (token, number of bytes) and so much code, runs it and prints the mark. The
# loop's own names are out of the way of the code's; a SystemExit ends the session.
_PYTHON: Final = r"""
import ast, os, sys, traceback
sys.path.insert(0, "")
os.dup2(1, 2)
_in = os.fdopen(os.dup(0), "rb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
def _run(source, names):
    tree = ast.parse(source, "<input>", "exec")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<input>", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "<input>", "eval"), names)
        if value is not None:
            print(repr(value))
_names = {"__name__": "__main__"}
while True:
    try:
        _header = _in.readline().split()
    except KeyboardInterrupt:
        continue
    if not _header:
        break
    _code = 0
    try:
        _run(_in.read(int(_header[1])).decode(), _names)
    except SystemExit:
        raise
    except BaseException as _error:
        _code = 1
        _trace = _error.__traceback__
        for _ in range(2):
            _trace = _trace and _trace.tb_next
        traceback.print_exception(type(_error), _error, _trace)
    for _stream in (sys.stdout, sys.stderr):
        try:
            _stream.flush()
        except Exception:
            pass
    os.write(1, b"\x1e%s:%d\x1f" % (_header[0], _code))
"""


def _bash_call(code: str, token: str) -> bytes:
    # The second line is read only after the first has run, and its escapes match no mark.
    return f"eval {shlex.quote(code)} </dev/null\nprintf '\\036{token}:%d\\37' \"$?\"\n".encode()


def _python_call(code: str, token: str) -> bytes:
    data = code.encode()
    return f"{token} {len(data)}\n".encode() + data


_BASH: Final = "exec 2>&1; exec bash --norc --noprofile"

COMMANDS: Final[Mapping[SessionKind, tuple[str, ...]]] = {
    "bash": ("bash", "--norc", "--noprofile", "-c", _BASH),
    "python": ("python3", "-I", "-u", "-c", _PYTHON),
}
# The trap keeps the shell alive when what it runs is interrupted.
_FIRST: Final[Mapping[SessionKind, bytes]] = {"bash": b"trap : INT\n", "python": b""}
_CALLS: Final[Mapping[SessionKind, Callable[[str, str], bytes]]] = {
    "bash": _bash_call,
    "python": _python_call,
}


class Session:
    """A shell or interpreter; one call at a time."""

    def __init__(
        self, kind: SessionKind, open_: Callable[[Sink], Awaitable[Process]], max_output: int
    ) -> None:
        self.kind: SessionKind = kind
        self._open = open_
        self._max_output = max_output
        self._process: Process | None = None
        self._ended: asyncio.Task[int] | None = None
        self._output: Output | None = None
        self._busy = False
        self._closed = False

    @property
    def is_running(self) -> bool:
        """False before the first call, and once it ended: the next call starts it anew."""
        return self._ended is not None and not self._ended.done()

    async def run(self, code: str, *, timeout_s: float) -> ExecResult:
        """Run code where the last call left off.

        Standard error is part of standard output. After a timeout the code is interrupted, and if
        it does not give up, the session ends; then, and when the code ends it itself, the next call
        finds a new one.

        Raises:
            SandboxClosed: The session was closed.
            SandboxDied: The sandbox ended.
        """
        if self._busy:
            raise RuntimeError(f"the {self.kind} session runs something; await that first")
        code = code.encode(errors="replace").decode().replace("\0", "")
        self._busy = True
        done = False
        try:
            ended = await self._started()
            token = secrets.token_hex(8)  # bash reads it byte by byte
            started = time.monotonic()
            assert self._process is not None
            self._process.write(_CALLS[self.kind](code, token))
            output = self._output = Output(token, self._max_output)
            result = await self._finish(output, ended, started, timeout_s)
            done = True
            return result
        finally:
            self._busy = False
            if not done:
                await asyncio.shield(self._end())

    async def interrupt(self) -> None:
        """Send SIGINT to what runs."""
        if self._process is not None and self.is_running:
            await self._process.interrupt()

    async def close(self) -> None:
        """End it; a second call does nothing."""
        self._closed = True
        await asyncio.shield(self._end())

    async def _started(self) -> "asyncio.Task[int]":
        if self._closed:
            raise SandboxClosed(f"the {self.kind} session was closed")
        if self._ended is None or self._ended.done():
            await self._end()
            self._process = await self._open(self._take)
            self._process.write(_FIRST[self.kind])
            self._ended = asyncio.create_task(self._process.wait())
        return self._ended

    def _take(self, _: int, data: bytes) -> None:
        if self._output is not None:
            self._output.feed(data)

    async def _finish(
        self, output: "Output", ended: "asyncio.Task[int]", started: float, timeout_s: float
    ) -> ExecResult:
        ended.add_done_callback(output.end)
        try:
            timed_out = not await output.over(timeout_s)
            if timed_out:
                await self.interrupt()
                await output.over(GRACE_S)
        finally:
            ended.remove_done_callback(output.end)
        if not output.marked:
            if not timed_out:
                output.code = await ended
            await self._end()
        seen = output.seen()
        return ExecResult(
            status="timeout" if timed_out else "exited",
            exit_code=None if timed_out else output.code,
            stdout=seen.data(),
            stdout_total=seen.total,
            stdout_truncated=seen.truncated,
            duration_s=time.monotonic() - started,
        )

    async def _end(self) -> None:
        process, self._process = self._process, None
        ended, self._ended = self._ended, None
        if process is not None and ended is not None:
            if not ended.done():
                await process.kill()
            with contextlib.suppress(SandboxDied):
                await ended


class Output:
    """What one call printed, up to its mark."""

    def __init__(self, token: str, max_output: int) -> None:
        self.marked = False
        self.code = 0
        self._mark = b"\x1e%s:" % token.encode()
        self._capture = Capture(max_output)
        self._held = b""
        """The end of the stream so far, which may be the beginning of the mark."""
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    async def over(self, timeout_s: float) -> bool:
        """Wait for the mark or the session's end; False if neither came in time."""
        # One future and one timer: each more turn of the event loop costs 20 us in every call.
        if not (self.marked or self._ended):
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        return self.marked or self._ended

    def end(self, _: object) -> None:
        """The session has ended, so that no mark comes any more."""
        self._ended = True
        self._wake()

    def feed(self, data: bytes) -> None:
        """Take output; what comes after the mark belongs to nobody and is dropped."""
        if self.marked:
            return
        self._held += data
        before, _, after = self._held.partition(self._mark)
        code, end, _ = after.partition(b"\x1f")
        if end and code.isdigit():
            self._capture.feed(before)
            self._held = b""
            self.code = int(code)
            self.marked = True
            self._wake()
        elif len(self._held) > _MARK_BYTES:
            self._capture.feed(self._held[:-_MARK_BYTES])
            self._held = self._held[-_MARK_BYTES:]

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def seen(self) -> Capture:
        """The output so far."""
        self._capture.feed(self._held)
        self._held = b""
        return self._capture
