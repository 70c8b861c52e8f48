"""Is the answer this number?"""

import math
import numbers
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar, Final

from agentrl.errors import ConfigError
from agentrl.types import Task

MAX_CHARS: Final = 1000
MAX_EXPONENT: Final = 1000

_NUMBER: Final = re.compile(
    r"""[+-]?
    (?: (?: [0-9]{1,3}(?:,[0-9]{3})+ | [0-9]+ ) (?:\.[0-9]*)? | \.[0-9]+ )  # 1,234.5  12.  .5
    (?: [eE](?P<exponent>[+-]?[0-9]{1,4}) )?
    | [+-]?[0-9]+/[0-9]+                                                     # 3/4
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class ExactNumber:
    """True if the answer is the reference number and nothing but a number.

    Compared without rounding: 0.5, .5, 5e-1 and 1/2 are equal, 0.33 and 1/3 are not. `tolerance` is
    the largest absolute difference that still counts as equal. White space around the number and
    thousands separators in their places are fine; words, units, currency and percent signs, two
    numbers, other bases and other digits than 0-9 are not. A number given by a tool (`finish(42)`)
    counts as well as text; a bool does not.
    """

    tolerance: float = 0.0

    in_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ConfigError(f"tolerance is {self.tolerance}, expected a finite number from 0")

    def score(self, task: Task, answer: Any) -> bool:
        """Compare `answer` with the task's.

        Raises:
            ValueError: the task's answer is no number.
        """
        reference = parse_number(task.answer)
        if reference is None:
            raise ValueError(f"the task's answer is {task.answer!r}, expected a number")
        found = parse_number(answer)
        if found is None:
            return False
        if self.tolerance == 0:
            return found == reference
        return abs(found - reference) <= Fraction(repr(float(self.tolerance)))


def parse_number(value: object) -> Fraction | None:
    """The exact value of a number or of a text that is one, else None.

    A float counts as the shortest decimal that is written for it: 0.1 is one tenth.
    """
    match value:
        case bool():
            return None
        case str():
            return _parse(value.strip()) if len(value) <= MAX_CHARS else None
        case numbers.Rational():
            return Fraction(int(value.numerator), int(value.denominator))
        case Decimal():
            return _parse(str(value))
        case numbers.Real():
            return _parse(repr(float(value)))
        case _:
            return None


def _parse(text: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text)
    if match is None or abs(int(match["exponent"] or 0)) > MAX_EXPONENT:
        return None
    try:
        return Fraction(text.replace(",", ""))
    except ZeroDivisionError:
        return None
