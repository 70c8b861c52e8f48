"""What a scheduler is told, and what it says is to be done.

A *ticket* is a place for one group in the order of the run, from 0: ticket // groups_per_step + 1
is the step that it is drawn for. It may be trained in an earlier or a later one.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Owner: TypeAlias = Literal["place", "engine", "environment", "verifier"]
"""Who an episode waits for; `place` is a place among those that are played at once."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; the first event of all, and the answer to `WakeAt`."""


@dataclass(frozen=True, slots=True)
class GroupDrawn:
    """The answer to `DrawGroup`: its episodes can begin."""

    ticket: int
    is_empty: bool = False
    """Nothing can be played: the group is ready as it is."""
    oldest: int | None = None
    """The oldest version of what its episodes have sampled already, before a resume."""


@dataclass(frozen=True, slots=True)
class EpisodeWaits:
    """A running episode waits for somebody else from now on."""

    ticket: int
    member: int
    owner: Owner
    tokens: int = 0
    """Of its context, with those of a request that it is about to send; 0: as many as before."""


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """The engine's cache holds so many tokens from now on."""

    tokens: int | None
    """None: it does not say."""
    longest: int
    """Tokens that an episode may have at once."""
    keep_s: float
    """So long an episode in a tool call holds its part."""


@dataclass(frozen=True, slots=True)
class EpisodeEnded:
    """An attempt is over; with `retry` another one is to follow, if any is left."""

    ticket: int
    member: int
    retry: bool = False
    stopped: bool = False
    """By `StopEpisode`."""


@dataclass(frozen=True, slots=True)
class GroupJudged:
    """The answer to `JudgeGroup`; another group may be there in its place."""

    ticket: int
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class BatchTrained:
    """The answer to `TrainBatch`: so many new versions, 0 if the batch changed nothing."""

    versions: int


@dataclass(frozen=True, slots=True)
class WeightsPublished:
    """The answer to `PublishWeights`: the engine samples with them."""


@dataclass(frozen=True, slots=True)
class StepFinished:
    """The answer to `FinishStep`."""


Event: TypeAlias = (
    Tick
    | GroupDrawn
    | EpisodeWaits
    | CapacityChanged
    | EpisodeEnded
    | GroupJudged
    | BatchTrained
    | WeightsPublished
    | StepFinished
)


@dataclass(frozen=True, slots=True)
class DrawGroup:
    """Draw a task for this ticket."""

    ticket: int


@dataclass(frozen=True, slots=True)
class BeginEpisode:
    """Play an attempt at a member's episode."""

    ticket: int
    member: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StopEpisode:
    """Stop a running attempt at this time, if it has not ended; the last time that is said holds.

    It is infinity where the attempt may go on after all.
    """

    ticket: int
    member: int
    time: float


@dataclass(frozen=True, slots=True)
class JudgeGroup:
    """All members have ended: say whether the group stays or another one takes its place."""

    ticket: int


@dataclass(frozen=True, slots=True)
class DropGroup:
    """The group would be trained on too late: stop what of it runs; nobody trains on it."""

    ticket: int


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Train on the groups of these tickets, in this order."""

    step: int
    tickets: tuple[int, ...]
    version: int
    """That is trained: what the trainer's weights are."""
    oldest: int
    """Tokens of versions before this one are too old to be trained on."""


@dataclass(frozen=True, slots=True)
class PublishWeights:
    """Bring the trainer's weights to the engine."""

    version: int
    """That they are."""


@dataclass(frozen=True, slots=True)
class FinishStep:
    """Do what belongs behind a step: its evaluation, metrics and checkpoint."""

    step: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Tick` at this time, in place of the one that was asked for before."""

    time: float


@dataclass(frozen=True, slots=True)
class Stalled:
    """Nothing has come for a long time; `Scheduler.waits` says who waits for whom."""

    since: float


Action: TypeAlias = (
    DrawGroup
    | BeginEpisode
    | StopEpisode
    | JudgeGroup
    | DropGroup
    | TrainBatch
    | PublishWeights
    | FinishStep
    | WakeAt
    | Stalled
)
