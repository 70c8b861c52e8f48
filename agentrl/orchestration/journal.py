"""`Journal`: what a run does beside its steps, in `events.jsonl`, whatever it dies of.

    start or resume ─▶ phase ─▶ phase ─▶ ... ─▶ stopped (in which phase, and why)

The routine of steps stands in `metrics.jsonl`; here only what it dies of.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from agentrl.errors import AgentrlError
from agentrl.orchestration.display import ROUTINE, Display
from agentrl.runs import EventsWriter, RunDirectory


class Journal:
    """A display that writes down what it is told to show; held open until `close`."""

    def __init__(self, directory: RunDirectory, display: Display) -> None:
        self._display = display
        self.events = EventsWriter(directory.events)
        self._phase = "preparation"

    def phase(self, name: str) -> None:
        """An event, unless it is part of every step."""
        self._phase = name
        if name not in ROUTINE:
            self.events.write("phase", phase=name)
        self._display.phase(name)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shown; `metrics.jsonl` has it."""
        self._display.step(step, metrics)

    def note(self, text: str) -> None:
        """Shown."""
        self._display.note(text)

    def warn(self, text: str) -> None:
        """Shown."""
        self._display.warn(text)

    def stopped(self, error: BaseException) -> None:
        """An event with the phase and the reason; a disk that is full keeps its own error."""
        reason = str(error) or type(error).__name__
        if not isinstance(error, AgentrlError):
            reason = f"{type(error).__name__}: {reason}"
        with suppress(AgentrlError):
            self.events.write("stopped", phase=self._phase, reason=reason)

    def close(self) -> None:
        """Close the file and the display."""
        self.events.close()
        self._display.close()


@contextmanager
def journal(directory: RunDirectory, display: Display) -> Generator[Journal]:
    """The journal of a run from its start to its end."""
    kept = Journal(directory, display)
    try:
        kept.events.write("start")
        yield kept
    except BaseException as error:
        kept.stopped(error)
        raise
    finally:
        kept.close()
