"""What a simulated run has to do, episodes and updates, and what goes wrong in it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, TypeAlias, get_args

from agentrl.schedule.events import BeginEpisode


def lognormal(mean: float, sigma: float) -> Callable[[Random], float]:
    """Draws with this mean; `sigma` is that of their natural logarithm."""
    mu = math.log(mean) - sigma**2 / 2
    return lambda rng: rng.lognormvariate(mu, sigma)


def _check_at_least(name: str, value: float, least: float) -> None:
    if not least <= value < math.inf:  # nan is not
        raise ValueError(f"{name}: got {value!r}, expected at least {least} and finite")


FaultRole: TypeAlias = Literal["engine", "environment", "sandbox host", "verifier", "trainer"]
FaultKind: TypeAlias = Literal["dies", "hangs", "slow", "wrong", "full disk"]
_WITH_DISK: Final = ("sandbox host", "trainer")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong in a simulated run."""

    at: float
    role: FaultRole
    kind: FaultKind
    """`slow` is late by half of `Workload.deadline_s`; only a host or a trainer fills a disk."""

    def __post_init__(self) -> None:
        _check_at_least("at", self.at, 0)
        known = {"role": get_args(FaultRole), "kind": get_args(FaultKind)}
        for name, values in known.items():
            if (got := getattr(self, name)) not in values:
                raise ValueError(f"{name}: got {got!r}, expected one of {', '.join(values)}")
        if self.kind == "full disk" and self.role not in _WITH_DISK:
            raise ValueError(
                f"kind: got 'full disk' of the {self.role}, which has no disk to fill; expected it "
                f"of the {' or the '.join(_WITH_DISK)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What episodes and updates take; all times in seconds."""

    num_turns: Callable[[Random], int]
    turn_s: Callable[[Random], float]
    """Of one turn, the environment's answer included if `environment_s` does not draw it."""
    environment_s: Callable[[Random], float] | None = None
    """Of the answer alone, during which the engine has one request less."""
    slowdown: Callable[[int], float] | None = None
    """How much longer than alone a turn takes with so many at once; None: all are alone."""
    train_s: float = 0.0
    stands_s: float = 0.0
    """Of each update, so long the engine stands still, whose devices the trainer has."""
    publish_s: float = 0.0
    """The engine stands still so long."""
    finish_s: float = 0.0
    """Of evaluation, metrics and checkpoint."""
    fails: float = 0.0
    """The share of attempts that end without a score and may be tried again."""
    hangs: Sequence[tuple[float, float]] = ()
    """(when, how long) the engine stands still."""
    faults: Sequence[Fault] = ()
    deadline_s: float = 30.0
    """Until what hangs is noticed, and counts as dead."""
    restart_s: float = 0.0
    """Until an engine or a run is there again."""
    checkpoint_every: int = 1
    """Steps."""

    def __post_init__(self) -> None:
        for name in (
            "train_s",
            "stands_s",
            "publish_s",
            "finish_s",
            "fails",
            "deadline_s",
            "restart_s",
        ):
            _check_at_least(name, getattr(self, name), 0)
        _check_at_least("checkpoint_every", self.checkpoint_every, 1)
        for number in (number for hang in self.hangs for number in hang):
            _check_at_least("hangs", number, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnAttempt:
    """What was drawn for one attempt."""

    turns_s: tuple[float, ...]
    answers_s: tuple[float, ...]
    """Of the environment, after each turn; none if they are part of the turns."""
    fails: bool


def draw_attempt(workload: Workload, begin: BeginEpisode, *, seed: int = 0) -> DrawnAttempt:
    """The draws of an attempt: the same in each schedule."""
    rng = Random(f"{seed}/{begin.ticket}/{begin.member}/{begin.attempt}")
    num_turns, fails = workload.num_turns(rng), rng.random() < workload.fails
    _check_at_least("num_turns", num_turns, 1)
    turns_s = tuple(workload.turn_s(rng) for _ in range(num_turns))
    answer = workload.environment_s
    answers_s = () if answer is None else tuple(answer(rng) for _ in range(num_turns))
    for seconds in (*turns_s, *answers_s):
        _check_at_least("turn_s", seconds, 0)
    return DrawnAttempt(turns_s=turns_s, answers_s=answers_s, fails=fails)
