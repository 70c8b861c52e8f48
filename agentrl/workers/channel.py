"""The parent's end of one worker: a frame out, a frame back, before a deadline.

The socket is registered with an event loop only while a call runs, so a worker serves whatever loop
or thread calls next.
"""

import asyncio
import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import time
from typing import Final

from agentrl.workers.errors import WorkerDied
from agentrl.workers.fork_server import MAGIC, STATUS
from agentrl.workers.worker import REPLY, REQUEST, REUSABLE

_CHUNK: Final = 1 << 18
_SLACK: Final = 1 << 16


class Channel:
    """One worker as its parent sees it; at most one exchange at a time."""

    def __init__(self, connection: socket.socket, number: int, max_result_bytes: int) -> None:
        self.number = number
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
        self._outgoing = memoryview(b"")

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

    async def exchange(self, request: bytes | None, timeout_s: float) -> bytes:
        """Send `request` (None: nothing) and wait for one reply.

        Raises:
            TimeoutError: no whole reply in time; the worker is still there.
            WorkerDied: the stream ended, so the worker is dead and reaped.
        """
        loop = asyncio.get_running_loop()
        fd = self._connection.fileno()
        answer: asyncio.Future[bytes] = loop.create_future()

        def on_readable() -> None:
            try:
                frame = self._receive_reply()
            except WorkerDied as error:
                _fail(answer, error)
                loop.remove_reader(fd)
            else:
                if frame is not None and not answer.done():
                    answer.set_result(frame)

        def on_writable() -> None:
            if self._send():
                loop.remove_writer(fd)

        self._prepare(request)
        timer = loop.call_later(timeout_s, _fail, answer, TimeoutError())
        loop.add_reader(fd, on_readable)
        try:
            if not self._send():
                loop.add_writer(fd, on_writable)
            return await answer
        finally:
            timer.cancel()
            loop.remove_reader(fd)
            if self._outgoing:
                loop.remove_writer(fd)

    def exchange_sync(self, request: bytes | None, timeout_s: float) -> bytes:
        """Like `exchange`, for a thread without an event loop."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        self._prepare(request)
        while True:
            sent = self._send()
            frame = self._receive_reply()
            if frame is not None:
                return frame
            left_s = deadline - time.monotonic()
            poll.register(self._connection, select.POLLIN | (0 if sent else select.POLLOUT))
            if left_s <= 0 or not poll.poll(left_s * 1000):
                raise TimeoutError

    def wait_until_reaped(self, limit_s: float) -> None:
        """Wait for the end of a worker that was killed, or until the limit."""
        with contextlib.suppress(WorkerDied, TimeoutError):
            while True:
                self.exchange_sync(None, limit_s)

    def _prepare(self, request: bytes | None) -> None:
        self._incoming.clear()
        frame = b"" if request is None else REQUEST.pack(len(request)) + request
        self._outgoing = memoryview(frame)

    def _send(self) -> bool:
        """Send what the socket takes; True when nothing is left."""
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]
        except BlockingIOError:
            return False
        except OSError:
            # The worker is gone: the reading side will say so, with its exit status.
            self._outgoing = memoryview(b"")
        return True

    def _receive_reply(self) -> bytes | None:
        """The reply if it is complete, None if it is not."""
        while True:
            try:
                chunk = self._connection.recv(_CHUNK)
            except BlockingIOError:
                return None
            except OSError:
                chunk = b""
            if not chunk:
                raise WorkerDied(_how_it_ended(bytes(self._incoming)))
            self._incoming += chunk
            frame = self._complete_frame()
            if frame is not None:
                return frame

    def _complete_frame(self) -> bytes | None:
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


def _fail(answer: "asyncio.Future[bytes]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _how_it_ended(tail: bytes) -> str:
    """In words, from the status that the template appended to the stream."""
    if len(tail) < STATUS.size:
        return "the process is gone"
    magic, status = STATUS.unpack(tail[-STATUS.size :])
    if magic != MAGIC:
        return "the process is gone"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"the process exited with status {code}"
    return f"the process was killed by {signal.Signals(-code).name}"
