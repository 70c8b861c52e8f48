"""Shows a run while it goes on: plain lines, or a live picture on a terminal."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from agentrl.cli.lines import Eta, step_line
from agentrl.orchestration.observers import ROUTINE, Observer


def make_display(name: str, total: int, stream: TextIO | None = None) -> Observer:
    """The display that fits a stream: live on a terminal, else plain.

    Args:
        name: what is shown as the title.
        total: steps of the whole run.
        stream: where to write; standard output by default.
    """
    out = stream or sys.stdout
    if out.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from agentrl.cli.live import LiveDisplay

        return LiveDisplay(name, total, out)
    return PlainDisplay(total, out)


class PlainDisplay(Observer):
    """One line per step and nothing that only a terminal understands."""

    def __init__(
        self, total: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._stream = stream or sys.stdout
        self._clock = clock
        self._eta = Eta(total, clock())
        self._began = False

    def phase(self, name: str) -> None:
        """A line for what is not part of every step."""
        if name not in ROUTINE:
            self._print_to_stream(f"{name} ...")
        elif not self._began:
            # The time that loading took says nothing about the steps.
            self._began = True
            self._eta = Eta(self._total, self._clock())

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """The step's line."""
        self._print_to_stream(
            step_line(step, self._total, metrics, self._eta.after(step, self._clock()))
        )

    def note(self, text: str) -> None:
        """A line."""
        self._print_to_stream(text)

    def warn(self, text: str) -> None:
        """A line that begins with "warning"."""
        self._print_to_stream(f"warning: {text}")

    def _print_to_stream(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
