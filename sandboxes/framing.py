"""Where the output of one call of a session begins and ends in the session's stream."""

import asyncio
import re
from dataclasses import dataclass
from typing import Final

from agentrl.sandboxes.capture import Capture

_MARK_BYTES: Final = 1024
"""More than the longest mark has."""
_OLD_MARK: Final = re.compile(rb"[^\n]*\b[0-9a-f]{16}\b[^\n]*\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a call's code is framed by; each has a random part that the code is not told."""

    begin: re.Pattern[bytes]
    """Printed by what runs the code, just before."""
    end: re.Pattern[bytes]
    """Printed after the code, with its exit code.

    What its group `before` is stands before it too. If `anew` is anything, lines were ended first,
    nobody knows how many: of what the code ended itself one line end is left.
    """
    stopped: bytes | None = None
    """Ends the line that comes when no other mark can come any more."""


class Output:
    """What one call printed between its marks.

    What came before belongs to an earlier call and is kept only in case that the code never began:
    then it says why.
    """

    def __init__(self, marks: Marks, max_output: int) -> None:
        self.code: int | None = None
        """The exit code, once the mark of the end has come."""
        self.begun = False
        self._marks = marks
        self._max_output = max_output
        self._capture = Capture(max_output)
        self._held = b""
        """The end of the stream so far, which may be the beginning of a mark."""
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    async def over(self, timeout_s: float) -> bool:
        """Wait for the end of the call or of the session; False if neither came in time."""
        # One future and one timer: each more turn of the event loop costs 20 us in every call.
        if not self._over:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, self._wake_output_waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
        return self._over

    def stop(self, _: object = None) -> None:
        """No mark comes any more."""
        self._over = True
        self._wake_output_waiter()

    def feed(self, data: bytes) -> None:
        """Take output; what comes after the last mark belongs to nobody and is dropped."""
        if self._over:
            return
        self._held += data
        if not self.begun and (found := self._marks.begin.search(self._held)):
            self.begun = True
            self._capture = Capture(self._max_output)
            self._held = self._held[found.end() :]
        if found := self._marks.end.search(self._held):
            groups = found.groupdict(b"")
            said = self._held[: found.start()].removesuffix(groups.get("before", b""))
            if groups.get("anew"):
                lines = said.rstrip(b"\n")
                said = lines + b"\n" * (len(said) - len(lines) > 1)
            self._held = said
            self.code = int(found[1])
            self.stop()
        elif self._marks.stopped and (place := self._held.find(self._marks.stopped)) >= 0:
            # Found by its end: a pattern that begins with any text takes quadratic time.
            self._held = self._held[: self._held.rfind(b"\n", 0, place) + 1]
            self.stop()
        elif len(self._held) > _MARK_BYTES:
            self._capture.feed(self._held[:-_MARK_BYTES])
            self._held = self._held[-_MARK_BYTES:]

    def seen(self) -> Capture:
        """The output so far."""
        self._capture.feed(self._held if self.begun else _OLD_MARK.sub(b"", self._held))
        self._held = b""
        return self._capture

    def _wake_output_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
