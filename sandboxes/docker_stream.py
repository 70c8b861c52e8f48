"""The stream of one command in a container: the engine's HTTP upgrade and its framing.

Docker's own client reads this stream in a thread, without a timeout, and may lose what comes with
the headers; here it is an asyncio protocol.
"""

import asyncio
import contextlib
import json
import socket
from typing import Final

from agentrl.sandboxes.errors import SandboxDied, SandboxUnavailable
from agentrl.sandboxes.process import Sink

_CONNECT_S: Final = 20.0
_HEADER_BYTES: Final = 1 << 16


class ExecStream(asyncio.Protocol):
    """Sends input, hands on output; `closed` is set when the engine has ended the stream."""

    def __init__(self, sink: Sink) -> None:
        self.closed = asyncio.Event()
        self._sink = sink
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray()
        self._upgraded = False

    @classmethod
    async def start(cls, host: str, exec_id: str, sink: Sink) -> "ExecStream":
        """Start a prepared exec.

        Raises:
            SandboxDied: The container does not run any more.
            SandboxUnavailable: The engine does not answer.
        """
        loop = asyncio.get_running_loop()
        kind, _, place = host.partition("://")
        stream = cls(sink)
        try:
            async with asyncio.timeout(_CONNECT_S):
                if kind == "unix":
                    await loop.create_unix_connection(lambda: stream, place)
                else:
                    name, _, port = place.partition(":")
                    family = socket.AF_UNSPEC
                    await loop.create_connection(lambda: stream, name, int(port), family=family)
                stream._send_stream_upgrade_request(exec_id)
                head = await stream._answered
        except (OSError, TimeoutError) as error:
            stream.close()
            raise SandboxUnavailable(f"the engine at {host} does not answer: {error}") from error
        status = head.split(b" ", 2)[1:2]
        if status not in ([b"101"], [b"200"]):
            stream.close()
            raise SandboxDied(f"the container does not run: {head.decode(errors='replace')[:200]}")
        return stream

    def _send_stream_upgrade_request(self, exec_id: str) -> None:
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        self.write(
            b"POST /exec/%s/start HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
            b"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: %d\r\n\r\n%s"
            % (exec_id.encode(), len(body), body)
        )

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take the headers, then frames: one byte for the stream, three of nothing, the length."""
        self._buffer += data
        if not self._upgraded:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                if len(self._buffer) > _HEADER_BYTES:
                    self.close()
                return
            self._upgraded = True
            self._buffer = rest
            if not self._answered.done():
                self._answered.set_result(bytes(head))
        while len(self._buffer) >= 8:
            length = int.from_bytes(self._buffer[4:8])
            if len(self._buffer) < 8 + length:
                break
            self._sink(2 if self._buffer[0] == 2 else 1, bytes(self._buffer[8 : 8 + length]))
            del self._buffer[: 8 + length]

    def connection_lost(self, exc: Exception | None) -> None:
        """The command has ended, or the engine."""
        self.closed.set()
        if not self._answered.done():
            self._answered.set_exception(ConnectionError("it hung up"))

    # What the sandbox calls.

    def write(self, data: bytes) -> None:
        """Send input."""
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close_stdin(self) -> None:
        """End the input."""
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):
                self._transport.write_eof()

    def close(self) -> None:
        """Hang up; the command itself goes on."""
        if self._transport is not None:
            self._transport.abort()

    async def end(self) -> None:
        """Hang up and wait until the connection is gone."""
        self.close()
        await self.closed.wait()
