"""`Terminated`: a signal asked the process to end, and it does so like `sys.exit`, tidying up."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


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


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """The handler of Ctrl-C while the command line loads: there is nothing to tidy up."""
    os.write(2, b"\nagentrl: interrupted\n")
    os._exit(128 + number)


def is_command() -> bool:
    """True in a process that was started as `agentrl` or as `python -m agentrl`."""
    words = sys.orig_argv[1:3]
    return "/".join(words[:1]).endswith("/agentrl") or words == ["-m", "agentrl"]
