"""Output of unbounded length in bounded memory."""


class Capture:
    """Keeps head and tail of a stream, and counts all of it."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_limit :] if self._tail_limit else b""
        # Cutting at twice the limit makes the copying cost nothing on average.
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    @property
    def truncated(self) -> bool:
        """True if bytes are missing from `data`."""
        return self.total > self._head_limit + self._tail_limit

    def data(self) -> bytes:
        """What was kept; a line in the middle says how much is missing."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        missing = self.total - self._head_limit - self._tail_limit
        tail = self._tail[len(self._tail) - self._tail_limit :]
        return bytes(self._head) + b"\n[... %d bytes left out ...]\n" % missing + bytes(tail)
