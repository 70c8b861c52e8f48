"""From what an environment's own `score` returns to an outcome."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from agentrl.boundary import said_by
from agentrl.envs.hooks import World
from agentrl.errors import EngineError, EnvironmentFault, EpisodeError, SandboxError, VerifierError
from agentrl.types import Invalid, Outcome, Score
from agentrl.verifiers.scoring import as_number

_ERRORS: dict[str, type[EpisodeError]] = {
    "engine": EngineError,
    "environment": EnvironmentFault,
    "sandbox": SandboxError,
    "verifier": VerifierError,
}


async def own_score(world: World, score: Callable[[Any], object], answer: Any) -> Outcome:
    """The outcome by the environment's own `score`, which sees the final state of its world.

    A world whose thread hangs in a tool cannot be looked at: the policy made it hang, so that is a
    score of 0.
    """
    if not await world.settle():
        return Score(value=0.0)
    try:
        value = await world.call_hook("score", partial(score, answer))
        return to_score(value)
    except EpisodeError as error:
        return Invalid(reason=said_by(error), blame=error.blame)


def to_score(value: object) -> Score:
    """A Score as it is; a finite number or a bool becomes one.

    Raises:
        EnvironmentFault: It is anything else: a missing `return` must not count as 0.
    """
    if isinstance(value, Score):
        return value
    number = as_number(value)
    if number is None:
        raise EnvironmentFault(
            f"score returned {value!r}, expected a Score, a number or a bool; is a return missing?"
        )
    if not math.isfinite(number):
        raise EnvironmentFault(f"score returned {value}, expected a finite number")
    return Score(value=number)


def outcome_error(invalid: Invalid) -> EpisodeError:
    """The exception that stands for an invalid outcome where there is no place for a value."""
    return _ERRORS.get(invalid.blame, EnvironmentFault)(invalid.reason)
