"""What watches a run: the command line's display, a tracker, or what a user brings.

`Journal` writes down what it tells them, and what a run dies of, in `events.jsonl`; the routine of
steps stands in `metrics.jsonl`.

    start or resume ─▶ phase ─▶ phase ─▶ ... ─▶ stopped (in which phase, and why)
"""

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, cast

from agentrl.boundary import said_by, user_code
from agentrl.config.seams import Seam, instance_of
from agentrl.errors import AgentrlError, ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import Overrides
from agentrl.orchestration.evaluate import EvalResult
from agentrl.run_dir import EventsWriter, RunDirectory
from agentrl.types import Episode

ROUTINE = frozenset({"rollout", "train", "publish", "eval", "checkpoint"})
"""The phases of every step; a plain log does not mention them."""

_LOG = logging.getLogger(__name__)
OBSERVERS: Final = Seam("observer", {}, "agentrl.observers")


class Observer:
    """Watches a run; each method does nothing, so that a subclass has those that it needs.

    All are called in the run's own thread, one after the other; what takes long delays the run.
    """

    def phase(self, name: str) -> None:
        """Something long begins: "rollout", "train", "eval", "warm start", ..."""

    def groups(self, done: int, total: int) -> None:
        """So many of the groups of episodes that are played in this phase have ended."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done, with all that `metrics.jsonl` has of it."""

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """The episodes that a step is trained on, before `step`; or those of an evaluation."""

    def eval(self, step: int, result: EvalResult) -> None:
        """An evaluation is done, after `episodes`."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def warn(self, text: str) -> None:
        """Something that must not be overlooked."""

    def close(self) -> None:
        """Nothing more will come."""


class Observers(Observer):
    """Tells several observers; one that raises is told nothing more, and the run goes on."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._told = list(observers)
        self.num_lost = 0

    def phase(self, name: str) -> None:
        """Tell all."""
        self._call_method_of_each_observer("phase", name)

    def groups(self, done: int, total: int) -> None:
        """Tell all."""
        self._call_method_of_each_observer("groups", done, total)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tell all."""
        self._call_method_of_each_observer("step", step, metrics)

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Tell all."""
        self._call_method_of_each_observer("episodes", step, episodes)

    def eval(self, step: int, result: EvalResult) -> None:
        """Tell all."""
        self._call_method_of_each_observer("eval", step, result)

    def note(self, text: str) -> None:
        """Tell all."""
        self._call_method_of_each_observer("note", text)

    def warn(self, text: str) -> None:
        """Tell all."""
        self._call_method_of_each_observer("warn", text)

    def close(self) -> None:
        """Tell all, for the last time."""
        self._call_method_of_each_observer("close")
        self._told.clear()

    def lose(self, observer: Observer, reason: str) -> None:
        """Go on without an observer, and say so to the others."""
        self._told.remove(observer)
        self.num_lost += 1
        with suppress(AgentrlError), user_code("closing"):
            observer.close()
        text = f"{reason}: it is told nothing more of this run"
        self._call_method_of_each_observer("warn", text)
        if not self._told:
            _LOG.warning("%s", text)

    def _call_method_of_each_observer(self, method: str, *values: object) -> None:
        for observer in tuple(self._told):
            try:
                with user_code(f"observer {type(observer).__name__}.{method}"):
                    getattr(observer, method)(*values)
            except AgentrlError as error:
                if observer in self._told:
                    self.lose(observer, str(error))


def check_observers(config: RunConfig, objects: Overrides) -> None:
    """Raise ConfigError for an observer that is none; classes are not instantiated yet."""
    for ref in config.observers:
        found = OBSERVERS.find(objects.get(ref) or ref)
        kind = found if isinstance(found, type) else type(found)
        if not issubclass(kind, Observer):
            raise ConfigError(
                f"{OBSERVERS.label(ref)} is no Observer; make it a subclass of agentrl.Observer"
            )


def make_observers(config: RunConfig, objects: Overrides) -> list[Observer]:
    """The observers of a configuration, which `check_observers` has checked."""
    found = [(ref, OBSERVERS.find(objects.get(ref) or ref)) for ref in config.observers]
    return [cast("Observer", instance_of(one, OBSERVERS.label(ref))) for ref, one in found]


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
