"""`Terminated`: a signal asked the process to end, and it does so like `sys.exit`, tidying up."""

import signal
from types import FrameType


class Terminated(SystemExit):
    """SIGTERM, or SIGHUP where the terminal went; ends the process with 128 + its number."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(128 + number)
        self.number = number
        self.message = message or f"ended by {signal.Signals(number).name}"

    def __str__(self) -> str:
        return self.message


def terminate(number: int, frame: FrameType | None) -> None:
    """The handler of both signals, wherever nothing better is known."""
    raise Terminated(number)
