"""Several verifiers, weighted; and what is worth a part of a score: a sound format, brevity."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

from agentrl.errors import ConfigError
from agentrl.types import CallErrorReason, EpisodeView, Invalid, Outcome, Score, Task
from agentrl.verifiers.scoring import Verifier, score_range

GATE: Final = "gate"


class Rubric:
    """The weighted sum of named parts, or 0 if the gate scores 0.

        Rubric(correct=(ExactNumber(), 0.8), brief=(LengthPenalty(200), 0.2), gate=FormatOk())

    Weights are taken as they are: let them sum to 1 to stay within [0, 1]. Every part is run and
    logged, unweighted, under its name ("correct"; "outer/inner" for parts of parts), whatever the
    gate says; one with weight 0 is a part of the score alone, such as a cost. If one part, or the
    gate, is Invalid, all of it is. Rubrics nest.
    """

    def __init__(
        self,
        *,
        gate: Verifier | None = None,
        success_at: float | None = None,
        **parts: tuple[Verifier, float],
    ) -> None:
        """Check the weights.

        Args:
            gate: a verifier that must not score 0.
            success_at: the least sum that is a success.
            parts: name=(verifier, weight).
        """
        if not parts:
            raise ConfigError("a rubric needs at least one part: Rubric(name=(verifier, weight))")
        for name, part in parts.items():
            _check_rubric_part(name, part)
        if not any(weight for _, weight in parts.values()):
            raise ConfigError("a rubric needs a part with a weight above 0, got only weights of 0")
        self._gate = gate
        self.success_at = success_at
        self._parts = parts

    @property
    def verifiers(self) -> Mapping[str, Verifier]:
        """All parts by name, the gate too."""
        parts = {name: verifier for name, (verifier, _) in self._parts.items()}
        return parts if self._gate is None else {**parts, GATE: self._gate}

    @property
    def score_range(self) -> tuple[float, float]:
        """The weighted sum of the parts' ranges, with 0 in it if there is a gate."""
        ranges = [(score_range(verifier), weight) for verifier, weight in self._parts.values()]
        low = math.fsum(low * weight for (low, _), weight in ranges)
        high = math.fsum(high * weight for (_, high), weight in ranges)
        return (low, high) if self._gate is None else (min(low, 0.0), max(high, 0.0))

    async def score_parts(self, run: Callable[[Verifier], Awaitable[Outcome]]) -> Outcome:
        """Run all parts side by side and add them up."""
        names = tuple(self.verifiers)
        outcomes = await asyncio.gather(*(run(verifier) for verifier in self.verifiers.values()))
        scores: dict[str, Score] = {}
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, Invalid):
                return Invalid(
                    reason=f"{name}: {outcome.reason}",
                    blame=outcome.blame,
                    retryable=outcome.retryable,
                )
            scores[name] = outcome
        value = math.fsum(scores[name].value * weight for name, (_, weight) in self._parts.items())
        if GATE in scores and scores[GATE].value == 0:
            value = 0.0
        return Score(value=value, parts=_flatten_scores_of_parts(scores))


def _check_rubric_part(name: str, part: object) -> None:
    pair = cast("tuple[object, ...]", part) if isinstance(part, tuple) else ()
    weight = pair[1] if len(pair) == 2 else None
    if not isinstance(weight, int | float) or isinstance(weight, bool):
        raise ConfigError(f"rubric part {name} is {part!r}, expected (verifier, weight)")
    if not (math.isfinite(weight) and weight >= 0):
        raise ConfigError(
            f"rubric part {name} has weight {weight}, expected a finite number, 0 or more; "
            "for a penalty, give a verifier with a negative score_range"
        )


def _flatten_scores_of_parts(scores: Mapping[str, Score]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for name, score in scores.items():
        parts[name] = score.value
        parts |= {f"{name}/{inner}": value for inner, value in score.parts.items()}
    return parts


@dataclass(frozen=True, slots=True)
class FormatOk:
    """True if every call that the policy tried to make could be read and fitted its tool's schema.

    An error that a tool itself raised is no fault of the format.
    """

    in_process: ClassVar[bool] = True

    def score_episode(self, view: EpisodeView) -> bool:
        """Look at the call errors of the episode.

        Raises:
            ValueError: the view was made without them.
        """
        if view.call_errors is None:
            raise ValueError("the view has no call_errors; whoever made it has to fill them in")
        reasons = {str(reason) for reason in CallErrorReason}
        return reasons.isdisjoint(view.call_errors)


@dataclass(frozen=True, slots=True)
class LengthPenalty:
    """1 up to `max_chars` characters, then falling evenly to 0 at twice as many.

    No answer and an empty one give 0: silence is not brevity.
    """

    max_chars: int

    in_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.max_chars < 1:
            raise ConfigError(f"max_chars is {self.max_chars}, expected at least 1")

    def score(self, task: Task, answer: Any) -> float:
        """How well the length of `answer` keeps the limit."""
        text = answer.strip() if isinstance(answer, str) else str(answer)
        length = 0 if answer is None else len(text)
        if length == 0:
            return 0.0
        return min(1.0, max(0.0, 2.0 - length / self.max_chars))
