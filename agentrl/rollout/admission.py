"""Admission policies: which groups are trained on, and what is begun and given up for that.

    a group ends ──▶ `Selection`: without what ──▶ judge ──▶ trained on
                      the filter leaves out                  or dropped; another in its place?
    a step begins ──▶ surplus: more groups than are needed?
    a member ends ──▶ patience: how long the others may take

A policy of a user's is a subclass of `Admission` that answers some of it in its own way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nan
from numbers import Integral, Real
from typing import Final, cast

from agentrl.boundary import user_code
from agentrl.config.seams import Seam, check_function
from agentrl.errors import ConfigError, RunError
from agentrl.rollout.collected import PlayedGroup
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.selection import Selection, drop
from agentrl.schedule import Allowance, Late
from agentrl.types import Episode, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedGroup:
    """A group whose members have ended, as a policy sees it."""

    task: Task
    env: str
    step: int
    """That it was drawn for."""
    episodes: tuple[Episode, ...]
    """Those that can be trained on, by member; none where none has a score."""
    teaches: Callable[[], bool]
    """Whether the estimator, given this group alone, has an advantage for any of its tokens."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a group; by default it is trained on."""

    dropped: str = ""
    """Why nobody trains on it, in a word such as flat, which metrics count it under."""
    replace: bool = False
    """Another task is played in its place, while a step has drawn less than `rollout.refill`."""


class Admission(Allowance):
    """What `rollout.refill`, `rollout.overprovision` and `rollout.stragglers` say."""

    def __init__(self, config: RolloutConfig) -> None:
        """Of a run with these settings."""
        self.config = config
        most = num_groups(config.tasks_per_step, config.overprovision)
        super().__init__(surplus=most - config.tasks_per_step, stragglers=config.stragglers)

    def judge(self, group: EndedGroup) -> Judgement:
        """Whether a group is trained on: dynamic sampling (DAPO, arXiv:2503.14476, section 3.2).

        One group is drawn for each that teaches nothing, so as soon as enough are kept none is;
        which ones are drawn does not depend on who ends first.
        """
        if self.config.refill == 1 or group.teaches():
            return Judgement()
        return Judgement("flat", replace=True)


ADMISSIONS: Final = Seam("admission", {"settings": Admission}, "agentrl.admissions")


def num_groups(tasks_per_step: int, multiple: float) -> int:
    """So many times the groups of a step."""
    return int(tasks_per_step * multiple + 1e-6)  # 20 * 1.15 is below 23


class CheckedAdmission(Allowance):
    """The configured policy; each of its answers is held against what it can be."""

    def __init__(
        self, config: RolloutConfig, given: object = None, *, late: Late, deterministic: bool
    ) -> None:
        """`given` is the policy where it is an object. Raises ConfigError if there is none."""
        self._label = ADMISSIONS.label(config.admission)
        found = ADMISSIONS.find(config.admission if given is None else given)
        check_function(found, self._label, "config")
        with user_code(self._label, fault=ConfigError):
            policy = cast("Callable[[RolloutConfig], object]", found)(config)
        if not isinstance(policy, Admission):
            raise ConfigError(
                f"{self._label} gave a {type(policy).__name__}, expected an Admission; make it a "
                "subclass of agentrl.rollout.Admission"
            )
        self._policy = policy
        self._by_chance = "with deterministic, where who ends first decides nothing"
        self._no_surplus = f"with async.late {late}, which gives no group up; set it to drop"
        self._is_fixed, self._drops = deterministic, late == "drop"

    def surplus(self, step: int) -> int:
        """As that of the policy. Raises RunError if it is none."""
        with user_code(f"{self._label}: surplus", fault=RunError):
            given = cast("object", self._policy.surplus(step))
        number = int(given) if isinstance(given, Integral) else -1
        if number < 0:
            raise RunError(
                f"{self._label}: surplus gave {given!r}, expected a number of groups of at least 0"
            )
        if number and (self._is_fixed or not self._drops):
            why = self._by_chance if self._is_fixed else self._no_surplus
            raise RunError(f"{self._label}: surplus gave {number}, expected 0 {why}")
        return number

    def patience(self, ended_s: Sequence[float], members: int) -> float:
        """As that of the policy. Raises RunError if it is none."""
        with user_code(f"{self._label}: patience", fault=RunError):
            given = cast("object", self._policy.patience(tuple(ended_s), members))
        seconds = float(given) if isinstance(given, Real) else nan
        if not seconds >= 0:
            raise RunError(
                f"{self._label}: patience gave {given!r}, expected seconds of at least 0, or "
                "infinity"
            )
        if self._is_fixed and seconds < inf:
            raise RunError(
                f"{self._label}: patience gave {seconds!r}, expected infinity {self._by_chance}"
            )
        return seconds

    def judge(self, group: EndedGroup) -> Judgement:
        """As that of the policy. Raises RunError if it is none."""
        with user_code(f"{self._label}: judge", fault=RunError):
            verdict = cast("object", self._policy.judge(group))
        if not isinstance(verdict, Judgement):
            raise RunError(f"{self._label}: judge gave {verdict!r}, expected a Judgement")
        why = cast("object", verdict.dropped)
        if not isinstance(why, str) or (why and not why.isidentifier()):
            raise RunError(
                f"{self._label}: judge gave {verdict}, expected one word to say why, such as flat"
            )
        if verdict.replace and not why:
            raise RunError(f"{self._label}: judge gave {verdict}, expected dropped to say why")
        return verdict


def drop_what_nobody_trains_on(
    group: PlayedGroup,
    selection: Selection,
    policy: CheckedAdmission,
    teaches: Callable[[PlayedGroup], bool],
) -> bool:
    """Move it to the group's dropped episodes; true if another group is to take its place."""
    selection.choose(group)
    verdict = policy.judge(
        EndedGroup(
            task=group.job.task,
            env=group.job.env,
            step=group.job.key.step,
            episodes=tuple(group.episodes),
            teaches=lambda: bool(group.episodes) and teaches(group),
        )
    )
    if verdict.dropped:
        drop(group, group.episodes, verdict.dropped)
    return verdict.replace


def check_admission(policy: CheckedAdmission, *, task: Task, env: str, members: int) -> None:
    """Raise ConfigError for a policy that answers wrongly when it is asked for the first time."""
    group = EndedGroup(task=task, env=env, step=1, episodes=(), teaches=lambda: False)
    try:
        policy.surplus(1)
        policy.patience([1.0], members)
        policy.judge(group)
    except RunError as error:
        raise ConfigError(str(error)) from error
