"""`bash` and `python` that keep their state from call to call.

What a session needs of its shell or interpreter (`shell`, `interpreter`) cannot be redefined by
what runs there; if it is broken in spite of that, the call ends at once and the session with it,
and what it cannot begin is run in a new one. What a session prints is what its code wants to print:
nothing that decides a reward may depend on it.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, TypeAlias

from agentrl.sandboxes import interpreter, shell
from agentrl.sandboxes.errors import SandboxClosed, SandboxDied
from agentrl.sandboxes.framing import Marks, Output
from agentrl.sandboxes.process import Process, Sink
from agentrl.sandboxes.types import ExecResult, Limits

SessionKind: TypeAlias = Literal["bash", "python"]
GRACE_S: Final = 1.0
"""So long a call may take to give up when it was interrupted, and when its children were killed."""
_INTERRUPTS: Final = 5

COMMANDS: Final[Mapping[SessionKind, tuple[str, ...]]] = {
    "bash": shell.COMMAND,
    "python": interpreter.COMMAND,
}
_FIRST: Final[Mapping[SessionKind, bytes]] = {"bash": shell.FIRST, "python": b""}
_CALLS: Final[Mapping[SessionKind, Callable[[str], tuple[bytes, Marks]]]] = {
    "bash": shell.call,
    "python": interpreter.call,
}


class Session:
    """A shell or interpreter; one call at a time."""

    def __init__(
        self, kind: SessionKind, open_: Callable[[Sink], Awaitable[Process]], limits: Limits
    ) -> None:
        self.kind: SessionKind = kind
        self._open = open_
        self._limits = limits
        self._process: Process | None = None
        self._ended: asyncio.Task[int] | None = None
        self._output: Output | None = None
        self._busy = False
        self._closed = False
        self.began_anew = False
        """The last call ran in a new shell: the one before had ended or could begin nothing."""

    @property
    def is_running(self) -> bool:
        """False before the first call, and once it ended: the next call starts it anew."""
        return self._ended is not None and not self._ended.done()

    async def run(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        """Run code where the last call left off.

        Standard error is part of standard output. After a timeout the code is interrupted, and what
        does not hear that is killed. If the session itself does not give up, it ends; then, and
        when the code ends it, the next call finds a new one. If what an earlier call did keeps the
        shell from beginning the code, it runs in a new one (`began_anew`). `timeout_s` is as for
        `Sandbox.exec`.

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
            limit_s = self._limits.timeout(timeout_s)
            result = await self._run_code_in_shell(code, limit_s)
            output, timed_out = self._output, result.status == "timeout"
            if output is not None and not output.begun and not timed_out:
                # What an earlier call did (`set -r`, `exec 10<&-`) broke the shell or ended it.
                result = await self._run_code_in_shell(code, limit_s)
                self.began_anew = True
            done = True
            return result
        finally:
            self._busy = False
            if not done:
                await asyncio.shield(self._kill_shell_of_session())

    async def _run_code_in_shell(self, code: str, timeout_s: float) -> ExecResult:
        if self._closed:
            raise SandboxClosed(f"the {self.kind} session was closed")
        self.began_anew = self._ended is not None and self._ended.done()
        if self._ended is None or self.began_anew:
            await self._kill_shell_of_session()
            self._process = await self._open(self._feed_output_to_current_call)
            self._process.write(_FIRST[self.kind])
            self._ended = asyncio.create_task(self._process.wait())
        ended = self._ended
        started = time.monotonic()
        assert self._process is not None
        lines, marks = _CALLS[self.kind](code)
        self._process.write(lines)
        output = self._output = Output(marks, self._limits.output_bytes)
        return await self._await_result_of_call(output, ended, started, timeout_s)

    async def interrupt(self) -> None:
        """Send SIGINT to what runs."""
        if self._process is not None and self.is_running:
            await self._process.interrupt()

    async def _interrupt_code_after_timeout(self, output: Output) -> None:
        # More than once: a shell takes no notice if its child has just ended well.
        for _ in range(_INTERRUPTS):
            await self.interrupt()
            if await output.over(GRACE_S / _INTERRUPTS):
                return
        if self._process is not None and await self._process.kill_children():
            await output.over(GRACE_S)

    async def close(self) -> None:
        """End it; a second call does nothing."""
        self._closed = True
        await asyncio.shield(self._kill_shell_of_session())

    def _feed_output_to_current_call(self, _: int, data: bytes) -> None:
        if self._output is not None:
            self._output.feed(data)

    async def _await_result_of_call(
        self, output: Output, ended: "asyncio.Task[int]", started: float, timeout_s: float
    ) -> ExecResult:
        ended.add_done_callback(output.stop)
        try:
            timed_out = not await output.over(timeout_s)
            if timed_out:
                await self._interrupt_code_after_timeout(output)
        finally:
            ended.remove_done_callback(output.stop)
        code = output.code
        if code is None or not output.begun:
            # It ended, or what runs the code did not do so; then no success may be reported.
            code = await ended if ended.done() and not timed_out else code or 1
            code = code if output.begun else code or 1
            await self._kill_shell_of_session()
        seen = output.seen()
        return ExecResult(
            status="timeout" if timed_out else "exited",
            exit_code=None if timed_out else code,
            stdout=seen.data(),
            stdout_total=seen.total,
            stdout_truncated=seen.truncated,
            duration_s=time.monotonic() - started,
        )

    async def _kill_shell_of_session(self) -> None:
        process, self._process = self._process, None
        ended, self._ended = self._ended, None
        if process is not None and ended is not None:
            if not ended.done():
                await process.kill()
            with contextlib.suppress(SandboxDied):
                await ended
