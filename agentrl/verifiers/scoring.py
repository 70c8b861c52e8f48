"""What a verifier is, and how it is run on an episode, where alone its failures become data.

A verifier has one of three methods, or is a plain function. Beside its method it may have four
attributes: `score_range` (default (0.0, 1.0)), outside of which a value is Invalid; `success_at`,
the least score that is a success (default: 1 is one, 0 is none, and nothing is said of others);
`in_process` (default False), for a method that is so surely bounded and cheap that it needs no
process of its own; `timeout_s`, the seconds that it may take.
"""

import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from typing_extensions import TypeIs

from agentrl.aio import OutOfTime, within
from agentrl.boundary import place_of, said_by, user_code
from agentrl.errors import AgentrlError, ConfigError
from agentrl.types import EpisodeView, Invalid, Outcome, Score, Task
from agentrl.workers import CallFailed, WorkerPool, WorkerTimeout

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


_MAX_REASON_CHARS: Final = 500


class _Raised(AgentrlError):
    """What a verifier's own code raised."""


async def score_with(
    verifier: Verifier, view: EpisodeView, *, pool: WorkerPool, timeout_s: float = 30.0
) -> Outcome:
    """The verifier's outcome on the episode.

    Async verifiers run in the event loop, sync ones in a process of `pool`, those that declare
    `in_process` at once. An exception, a time-out, no value, NaN, a value outside the declared
    range: each is Invalid, blamed on the verifier. `timeout_s` of a verifier goes before the one
    given here.
    """
    timeout_s = float(getattr(verifier, "timeout_s", timeout_s))
    if is_composite(verifier):
        # A composite runs nothing itself, so its parts' limits are its own.
        work = verifier.score_parts(partial(score_with, view=view, pool=pool, timeout_s=timeout_s))
        return await _await_score_or_invalid(verifier, work)
    return await _await_score_or_invalid(
        verifier, _run_verifier_on_view(verifier, view, pool, timeout_s)
    )


async def _await_score_or_invalid(verifier: Verifier, work: Awaitable[object]) -> Outcome:
    name = name_of(verifier)
    try:
        with user_code(f"verifier {name}", fault=_Raised):
            return outcome_of(await work, score_range(verifier), name)
    except WorkerTimeout as error:
        return _make_invalid_by_verifier(f"verifier {name} took too long: {error}")
    except CallFailed as error:
        return _make_invalid_by_verifier(f"verifier {name} failed in its process: {error}")
    except _Raised as error:
        return _make_invalid_by_verifier(str(error))
    except AgentrlError as error:
        what = f"{type(error).__name__}: {said_by(error)}"
        return _make_invalid_by_verifier(f"verifier {name} raised {what}{place_of(error)}")


def method_of(verifier: Verifier) -> Callable[..., object]:
    """What is called; `score_episode` goes before `score`, and both before a plain call."""
    if is_episode_verifier(verifier):
        return verifier.score_episode
    if is_answer_verifier(verifier):
        return verifier.score
    return cast("Callable[..., object]", verifier)


def is_async(method: Callable[..., object]) -> bool:
    """True for coroutine functions and for objects whose call is one."""
    while isinstance(method, partial):
        method = method.func
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(
        getattr(method, "__call__", None)  # noqa: B004 - the question is what calling gives
    )


def outcome_of(value: object, allowed: tuple[float, float], name: str) -> Outcome:
    """The value as an outcome, if it is one."""
    if isinstance(value, Invalid):
        return value
    number = value.value if isinstance(value, Score) else as_number(value)
    if number is None:
        got = "None" if value is None else f"a {type(value).__qualname__}"
        return _make_invalid_by_verifier(
            f"verifier {name} returned {got}, expected a number, a bool, a Score or "
            "Invalid; is a return missing?"
        )
    low, high = allowed
    if not low <= number <= high:  # NaN too
        return _make_invalid_by_verifier(
            f"verifier {name} returned {number:g}, outside its range [{low:g}, {high:g}]; "
            "declare score_range if that is a score"
        )
    if isinstance(value, Score):
        return replace(value, value=float(number))
    return Score(value=number)


def as_number(value: object) -> float | None:
    """A number or a truth value, numpy's too, as a float; None if it is neither.

    One that is too large is infinite.
    """
    if not isinstance(value, numbers.Real | np.bool_):
        return None
    try:
        return float(cast("float", value))
    except OverflowError:
        return math.inf


async def _run_verifier_on_view(
    verifier: Verifier, view: EpisodeView, pool: WorkerPool, timeout_s: float
) -> object:
    method = method_of(verifier)
    episode = is_episode_verifier(verifier)
    arguments: tuple[object, ...] = (view,) if episode else (view.task, view.answer)
    if is_async(method):

        async def answer() -> object:
            return await cast("Awaitable[object]", method(*arguments))

        try:
            return await within(timeout_s, answer())
        except OutOfTime:
            raise WorkerTimeout(f"it did not answer within {timeout_s:g} s") from None
    if getattr(verifier, "in_process", False):
        return method(*arguments)
    return await pool.call(method, *arguments, timeout_s=timeout_s)


def _make_invalid_by_verifier(reason: str) -> Invalid:
    return Invalid(reason=" ".join(reason.split())[:_MAX_REASON_CHARS], blame="verifier")
