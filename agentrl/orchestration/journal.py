"""`Journal`: what a run does beside its steps, in `events.jsonl`, whatever it dies of.

    start or resume ─▶ phase ─▶ phase ─▶ ... ─▶ stopped (in which phase, and why)

The routine of steps stands in `metrics.jsonl`; here only what it dies of.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from agentrl.errors import AgentrlError
from agentrl.orchestration.observers import ROUTINE, Observer, Observers
from agentrl.places import said_by
from agentrl.run_dir import EventsWriter, RunDirectory


class Journal(Observers):
    """Writes down what it tells the observers; held open until `close`."""

    def __init__(self, directory: RunDirectory, observers: Sequence[Observer]) -> None:
        super().__init__(observers)
        self.events = EventsWriter(directory.events)
        self._phase = "preparation"

    def phase(self, name: str) -> None:
        """An event, unless it is part of every step."""
        self._phase = name
        if name not in ROUTINE:
            self.events.write("phase", phase=name)
        super().phase(name)

    def lose(self, observer: Observer, reason: str) -> None:
        """An event too; it counts those that are lost."""
        super().lose(observer, reason)
        self.events.write("observer_lost", reason=reason, number=self.num_lost)

    def stopped(self, error: BaseException) -> None:
        """An event with the phase and the reason; a disk that is full keeps its own error."""
        reason = said_by(error) or type(error).__name__
        if not isinstance(error, AgentrlError):
            reason = f"{type(error).__name__}: {reason}"
        with suppress(AgentrlError):
            self.events.write("stopped", phase=self._phase, reason=reason)

    def close(self) -> None:
        """Close the observers and the file."""
        try:
            super().close()
        finally:
            self.events.close()


@contextmanager
def journal(directory: RunDirectory, observers: Sequence[Observer]) -> Generator[Journal]:
    """The journal of a run from its start to its end."""
    kept = Journal(directory, observers)
    try:
        kept.events.write("start")
        yield kept
    except BaseException as error:
        kept.stopped(error)
        raise
    finally:
        kept.close()
