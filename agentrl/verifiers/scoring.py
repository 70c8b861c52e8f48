"""Run a verifier on an episode: the one place where its failures become data."""

import inspect
import math
import numbers
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final, cast

import numpy as np

from agentrl.aio import OutOfTime, within
from agentrl.boundary import place_of, said_by, user_code
from agentrl.errors import AgentrlError
from agentrl.types import EpisodeView, Invalid, Outcome, Score
from agentrl.verifiers.protocol import (
    Verifier,
    is_answer_verifier,
    is_composite,
    is_episode_verifier,
    name_of,
    score_range,
)
from agentrl.workers import CallFailed, WorkerPool, WorkerTimeout

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
