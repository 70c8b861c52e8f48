"""How a run's work is scheduled."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from pydantic import Field

from agentrl.config import Config
from agentrl.errors import ConfigError

Late: TypeAlias = Literal["wait", "mask", "drop"]
Concurrency: TypeAlias = int | Literal["auto"]


class AsyncConfig(Config):
    """How far sampling may run ahead of training."""

    staleness: int = Field(
        default=0,
        ge=0,
        description="Most versions that a trained token may be older than the weights that are "
        "trained; 0: synchronous, 1: one step off.",
    )
    late: Late = Field(
        default="wait",
        description="What becomes of a group that would be older: wait for it in time, mask its "
        "older tokens, or drop it.",
    )
    partial: bool = Field(
        default=True,
        description="Let episodes go on over an update; false: an update waits for their ends.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The numbers that a scheduler goes by. Raises ConfigError if no schedule has them."""

    groups_per_step: int
    members: int
    """Episodes of a group."""
    steps: int
    """The last step; with 1 and `trains` false, groups are played once and nothing is trained."""
    trains: bool = True
    attempts: int = 1
    """At an episode, at most."""
    concurrency: Concurrency | None = None
    """Episodes played at once; auto: as many as the engine's cache holds; None: all of them."""
    staleness: int = 0
    """The version that is trained minus that of a trained token, at most; 0 is synchronous."""
    updates: int = 1
    """Versions that one batch makes."""
    late: Late = "wait"
    """What becomes of a group that would be trained on too late."""
    partial: bool = True
    """False: no episode goes on under other weights than those that it began with."""
    stall_s: float = 60.0
    """So long nothing may come before `Stalled` is said."""

    def __post_init__(self) -> None:
        for name in ("groups_per_step", "members", "steps", "attempts", "updates", "concurrency"):
            if isinstance(number := getattr(self, name), int) and number < 1:
                raise ConfigError(f"{name}: got {number}, expected at least 1")
        if self.late not in get_args(Late):
            raise ConfigError(f"late: got {self.late!r}, expected one of wait, mask, drop")
        if self.staleness < 0 or 0 < self.staleness < self.updates:
            raise ConfigError(
                f"async.staleness: got {self.staleness}, expected 0 or at least {self.updates}: so "
                "many updates are made of one batch, and each is a version"
            )

    @property
    def outstanding(self) -> int:
        """Groups in flight, queued or in training, at most."""
        return (self.staleness // self.updates + 1) * self.groups_per_step

    def tickets_until(self, step: int) -> int:
        """How many groups are drawn for the steps up to this one."""
        return step * self.groups_per_step
