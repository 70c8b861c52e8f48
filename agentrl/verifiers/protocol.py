"""What a verifier is: one of three methods, or a plain function.

Beside its method a verifier may have four attributes: `score_range` (default (0.0, 1.0)), outside
of which a value is Invalid; `success_at`, the least score that is a success (default: 1 is one, 0
is none, and nothing is said of others); `in_process` (default False), for a method that is so
surely bounded and cheap that it needs no process of its own; `timeout_s`, the seconds that it may
take.
"""

import math
import numbers
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from typing_extensions import TypeIs

from agentrl.errors import ConfigError
from agentrl.types import EpisodeView, Invalid, Outcome, Score, Task

_UNIT = (0.0, 1.0)

Verdict: TypeAlias = bool | int | float | Score | Invalid
"""What a verifier returns, or awaits and then returns."""


@runtime_checkable
class AnswerVerifier(Protocol):
    """Compares values only: it cannot be fooled by what tools or the policy said on the way."""

    def score(self, task: Task, answer: Any) -> Verdict | Awaitable[Verdict]:
        """The verdict on `answer`."""
        ...


@runtime_checkable
class EpisodeVerifier(Protocol):
    """Looks at the whole episode."""

    def score_episode(self, view: EpisodeView) -> Verdict | Awaitable[Verdict]:
        """The verdict on the episode."""
        ...


@runtime_checkable
class CompositeVerifier(Protocol):
    """Made of other verifiers, each of which runs where and as long as it would alone."""

    async def score_parts(self, run: "Callable[[Verifier], Awaitable[Outcome]]") -> Outcome:
        """The outcome from those of the parts; `run` gives the outcome of one."""
        ...


PlainVerifier: TypeAlias = Callable[[Task, Any], Verdict | Awaitable[Verdict]]
Verifier: TypeAlias = AnswerVerifier | EpisodeVerifier | CompositeVerifier | PlainVerifier


# As `isinstance` with the protocols says it, which takes fifty times as long.


def is_answer_verifier(verifier: object) -> TypeIs[AnswerVerifier]:
    """True if it has `score`."""
    return callable(getattr(verifier, "score", None))


def is_episode_verifier(verifier: object) -> TypeIs[EpisodeVerifier]:
    """True if it has `score_episode`."""
    return callable(getattr(verifier, "score_episode", None))


def is_composite(verifier: object) -> TypeIs[CompositeVerifier]:
    """True if it has `score_parts`."""
    return callable(getattr(verifier, "score_parts", None))


def name_of(verifier: object) -> str:
    """How messages call it."""
    return str(getattr(verifier, "__qualname__", type(verifier).__qualname__))


def score_range(verifier: object) -> tuple[float, float]:
    """Smallest and largest value that the verifier may give.

    Raises:
        ConfigError: what it declares is not a range.
    """
    declared: object = getattr(verifier, "score_range", _UNIT)
    if declared is _UNIT:
        return _UNIT
    found = cast("Sequence[object]", declared) if isinstance(declared, Sequence) else ()
    low, high = map(_to_finite_float_or_nan, found) if len(found) == 2 else (math.nan, math.nan)
    if low < high:
        return low, high
    who = name_of(verifier) if isinstance(verifier, type) else f"verifier {name_of(verifier)}"
    raise ConfigError(
        f"{who} declares score_range {declared!r}; expected two finite numbers, the smaller first"
    )


def success_at(verifier: object) -> float | None:
    """The least score that is a success; None if the verifier does not say.

    Raises:
        ConfigError: what it declares lies outside its range.
    """
    declared: object = getattr(verifier, "success_at", None)
    if declared is None:
        return None
    who = f"verifier {name_of(verifier)}"
    return check_success_at(declared, score_range(verifier), who)


def check_success_at(declared: object, scores: tuple[float, float], who: str) -> float:
    """The threshold that `who` declares for scores of a range.

    Raises:
        ConfigError: it is no number that tells some of them from others.
    """
    low, high = scores
    least = _to_finite_float_or_nan(declared)
    if low < least <= high:
        return least
    raise ConfigError(
        f"{who} declares success_at {declared!r}; expected a number above {low:g} and at most "
        f"{high:g}, as its score_range says"
    )


def _to_finite_float_or_nan(declared: object) -> float:
    """A finite number; NaN for anything else."""
    if isinstance(declared, bool) or not isinstance(declared, numbers.Real):
        return math.nan
    try:
        number = float(declared)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan
