"""The parent's end of one worker: a frame out, a frame back, before a deadline.

The socket is registered with an event loop only while a call runs, so a worker serves whatever loop
calls next. While one runs, the process is looked at: one that was stopped (SIGSTOP, a debugger) is
killed when that has lasted for the deadline, and so is a template that cannot see to its workers.
One that is only busy has the call's own time.
"""

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from agentrl.workers.calls import WorkerDied
from agentrl.workers.fork_server import MAGIC, STATUS
from agentrl.workers.worker import REPLY, REQUEST, REUSABLE

_CHUNK: Final = 1 << 18
_SLACK: Final = 1 << 16
_LOOKS: Final = 4
"""In a row, a process has to be found stopped; counted, since this process may have been too."""


def is_stopped(pid: int) -> bool:
    """True if a process was stopped and not continued; False where Linux does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


class Channel:
    """One worker as its parent sees it; at most one exchange at a time."""

    def __init__(
        self,
        connection: socket.socket,
        number: int,
        max_result_bytes: int,
        *,
        template: int,
        deadline_s: float,
    ) -> None:
        self.number = number
        self._pids = [template]
        """Of the template, and of the worker once it is up."""
        self._deadline_s = deadline_s
        self._looks = 0
        """In which a process was stopped, in a row."""
        self._timer: asyncio.TimerHandle | None = None
        self.path = tuple(sys.path)
        """The import path that the worker was started with."""
        self.ready = False
        """True once the worker has said that it is up."""
        self.reusable = True
        """False once a call left a process running."""
        self._limit = max_result_bytes + _SLACK
        self._connection = connection
        self._connection.setblocking(False)
        self._incoming = bytearray()

    def is_fit(self) -> bool:
        """True if the worker waits for a call and would find what its parent would import."""
        if not self.reusable or not self.ready or tuple(sys.path) != self.path:
            return False
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Hang up; an idle worker then ends by itself."""
        self._connection.close()

    @property
    def pid(self) -> int:
        """The worker's process, once it is up; until then the template's."""
        return self._pids[-1]

    async def start(self, timeout_s: float) -> None:
        """Wait until the worker is up; raises as `exchange` does."""
        self._pids.append(int(pickle.loads(await self.exchange(None, timeout_s))))
        self.ready = True

    async def exchange(self, request: bytes | None, timeout_s: float) -> bytes:
        """Send `request` (None: nothing) and wait for one reply.

        Raises:
            TimeoutError: no whole reply in time; the worker is still there.
            WorkerDied: the stream ended, so the worker is dead and reaped.
        """
        loop = asyncio.get_running_loop()
        self._incoming.clear()
        self._look_at_processes_later(loop)
        try:
            return await self._send_and_receive(loop, request, timeout_s)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _send_and_receive(
        self, loop: asyncio.AbstractEventLoop, request: bytes | None, timeout_s: float
    ) -> bytes:
        async with asyncio.timeout(timeout_s):
            if request is not None:
                frame = REQUEST.pack(len(request)) + request
                # A worker that is gone shows when its stream is read, with its exit status.
                with contextlib.suppress(OSError):
                    await loop.sock_sendall(self._connection, frame)
            while (reply := self._take_complete_reply_frame()) is None:
                chunk = b""
                with contextlib.suppress(OSError):
                    chunk = await loop.sock_recv(self._connection, _CHUNK)
                if not chunk:
                    raise WorkerDied(self._describe_end_of_process(bytes(self._incoming)))
                self._incoming += chunk
        return reply

    def _look_at_processes_later(self, loop: asyncio.AbstractEventLoop) -> None:
        pause_s = self._deadline_s / (_LOOKS + 1)
        self._timer = loop.call_later(pause_s, self._kill_what_stays_stopped, loop)

    def _kill_what_stays_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        stopped = [pid for pid in self._pids if is_stopped(pid)]
        self._looks = self._looks + 1 if stopped else 0
        if self._looks >= _LOOKS:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._look_at_processes_later(loop)

    def _take_complete_reply_frame(self) -> bytes | None:
        if len(self._incoming) < REPLY.size:
            return None
        size, flag = REPLY.unpack_from(self._incoming)
        if size > self._limit:
            # What a dead worker leaves is no reply; its status follows with the end of the stream.
            del self._incoming[: -STATUS.size]
            return None
        if len(self._incoming) < REPLY.size + size:
            return None
        frame = bytes(memoryview(self._incoming)[REPLY.size : REPLY.size + size])
        if frame and not frame.endswith(pickle.STOP):
            return None  # cut short by the worker's end, and filled up by its status
        self.reusable = flag == REUSABLE
        return frame

    def _describe_end_of_process(self, tail: bytes) -> str:
        """In words, from the status that the template appended to the stream."""
        if self._looks >= _LOOKS:
            return f"the process stood still for {self._deadline_s:g} s and was killed"
        if len(tail) < STATUS.size:
            return "the process is gone"
        magic, status = STATUS.unpack(tail[-STATUS.size :])
        if magic != MAGIC:
            return "the process is gone"
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"the process exited with status {code}"
        return f"the process was killed by {signal.Signals(-code).name}"
