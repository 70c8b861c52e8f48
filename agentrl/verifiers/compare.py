"""When two values are the same: numbers, text, lines, JSON. Every rule compares by these.

`ExactNumber` and `ExactMatch` are the verifiers that do nothing else.

What is compared may be anything that a policy wrote, so nothing here raises for it or takes long.
"""

import ast
import json
import math
import numbers
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar, Final, cast

from agentrl.errors import ConfigError
from agentrl.types import Task

MAX_CHARS: Final = 1000
MAX_EXPONENT: Final = 1000

_NUMBER: Final = re.compile(
    r"""[+-]?
    (?: (?: [1-9][0-9]{0,2}(?:,[0-9]{3})+ | [0-9]+ ) (?:\.[0-9]*)? | \.[0-9]+ )  # 1,234.5  12.  .5
    (?: [eE](?P<exponent>[+-]?[0-9]{1,4}) )?
    | [+-]?[0-9]+/[0-9]+                                                     # 3/4
    """,
    re.VERBOSE,
)
MAX_DEPTH: Final = 64
"""Of JSON that is compared."""
_CLOSE: Final = 1e-9
"""So much may floats differ, as a share of the larger: the last digits depend on how one adds."""
_NEAR: Final = 1e-5
_TINY: Final = 1e-7
"""A test for nearness lets different programs give values that differ by so much: of the value,
and near zero."""


def same_text(found: object, wanted: str, *, strip: bool = True, casefold: bool = False) -> bool:
    """The same characters, but for white space around them and upper and lower case, if asked."""

    def form(text: str) -> str:
        text = text.strip() if strip else text
        return text.casefold() if casefold else text

    return isinstance(found, str) and form(found) == form(wanted)


def same_lines(found: object, wanted: str) -> bool:
    """The same lines, but for blanks at their ends and empty lines at the end.

    A line ends with a newline, or with a carriage return and one.
    """
    return isinstance(found, str) and _split_stripped_lines(found) == _split_stripped_lines(wanted)


def _split_stripped_lines(text: str) -> list[str]:
    lines = [line.rstrip(" \t\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def same_number(found: object, wanted: Fraction, *, tolerance: float = 0.0) -> bool:
    """The same number, exactly, or within an absolute difference."""
    number = parse_number(found)
    if number is None:
        return False
    return number == wanted or abs(number - wanted) <= Fraction(repr(float(tolerance)))


def parse_number(value: object) -> Fraction | None:
    """The exact value of a number or of a text that is one, else None.

    A float counts as the shortest decimal that is written for it: 0.1 is one tenth.
    """
    match value:
        case bool():
            return None
        case str():
            return _parse_fraction_or_none(value.strip()) if len(value) <= MAX_CHARS else None
        case numbers.Rational():
            return Fraction(int(value.numerator), int(value.denominator))
        case Decimal():
            return _parse_fraction_or_none(str(value))
        case numbers.Real():
            return _parse_fraction_or_none(repr(float(value)))
        case _:
            return None


def _parse_fraction_or_none(text: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text)
    if match is None or abs(int(match["exponent"] or 0)) > MAX_EXPONENT:
        return None
    try:
        return Fraction(text.replace(",", ""))
    except ZeroDivisionError:
        return None


class NotJson(ValueError):
    """A text that is no JSON, has a key twice in an object, or is deeper than `MAX_DEPTH`.

    NaN and infinities are none.
    """


def read_json(text: str | bytes) -> object:
    """The value of a text.

    Raises:
        NotJson: It is no JSON.
    """
    try:
        value: object = json.loads(text, object_pairs_hook=_build_unique_dict)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from error
    check_json(value)
    return value


def check_json(value: object, depth: int = 0) -> None:
    """Check that a value is one that JSON has.

    Raises:
        NotJson: It is not.
    """
    if depth > MAX_DEPTH:
        raise NotJson(f"it is nested deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        for item in cast("list[object]", value):
            check_json(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            if not isinstance(key, str):
                raise NotJson(f"a {type(key).__name__} is a key")
            check_json(item, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise NotJson(f"{value} is no JSON")
    elif not isinstance(value, str | int | float | None):
        raise NotJson(f"a {type(value).__name__} is no JSON")


def same_json(found: object, wanted: object) -> bool:
    """Equal in type and value; floats in nine digits, and zero is equal to zero alone.

    Both are values that `check_json` lets pass.
    """
    if type(found) is not type(wanted):
        return False
    if isinstance(found, float) and isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=_CLOSE, abs_tol=0.0)
    if isinstance(found, list):
        ours, theirs = cast("list[object]", found), cast("list[object]", wanted)
        return len(ours) == len(theirs) and all(map(same_json, ours, theirs))
    if isinstance(found, dict):
        mine, other = cast("dict[str, object]", found), cast("dict[str, object]", wanted)
        return mine.keys() == other.keys() and all(same_json(mine[k], other[k]) for k in mine)
    return found == wanted


def same_printed_json(found: object, wanted: object) -> bool:
    """A text that is the JSON of a value, however it is written."""
    if not isinstance(found, str):
        return False
    try:
        return same_json(read_json(found), wanted)
    except NotJson:
        return False


def same_literal(found: str, wanted: str, *, in_any_order: bool = False) -> bool:
    """Two texts of Python literals with the same value; numbers may differ by 1e-5 of it.

    Args:
        found: a text.
        wanted: another one.
        in_any_order: lists are the same that have the same items, each as often.
    """
    if found == wanted:
        return True
    try:
        one: object = ast.literal_eval(found)
        other: object = ast.literal_eval(wanted)
        return (_are_same_items_in_lists if in_any_order else _are_values_near)(one, other)
    except (ValueError, TypeError, ArithmeticError, SyntaxError, RecursionError, MemoryError):
        return False


def _are_same_items_in_lists(one: object, other: object) -> bool:
    if not isinstance(one, list) or not isinstance(other, list):
        return False
    return _are_items_near_in_any_order(cast("list[object]", one), cast("list[object]", other))


def _are_items_near_in_any_order(items: Collection[object], wanted: Collection[object]) -> bool:
    """Whether the items are the same, each as often, in any order."""
    left = [*wanted]
    for item in items:
        place = next((i for i, rest in enumerate(left) if _are_values_near(item, rest)), None)
        if place is None:
            return False
        del left[place]
    return not left


def _are_values_near(one: object, other: object) -> bool:
    match one, other:
        case float() | int(), float() | int():
            # Above that a float is a whole number always, and written like one.
            are_ints = float not in (type(one), type(other))
            exact = are_ints and min(abs(one), abs(other)) < 1 << 53
            near = math.isclose(one, other, rel_tol=_NEAR, abs_tol=_TINY)
            return one == other if exact else near
        case (list(), list()) | (tuple(), tuple()):
            left, right = cast("Sequence[object]", one), cast("Sequence[object]", other)
            return len(left) == len(right) and all(map(_are_values_near, left, right))
        case dict(), dict():
            before = cast("Mapping[object, object]", one)
            after = cast("Mapping[object, object]", other)
            same = before.keys() == after.keys()
            return same and all(_are_values_near(before[key], after[key]) for key in before)
        case set(), set():
            return _are_items_near_in_any_order(
                cast("set[object]", one), cast("set[object]", other)
            )
        case _:
            return one == other


def _build_unique_dict(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # The usual reading keeps the last one of a key's values and says nothing of the others.
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotJson("an object has a key twice")
    return found


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
        return same_number(answer, reference, tolerance=self.tolerance)


@dataclass(frozen=True, slots=True)
class ExactMatch:
    """True if the answer is the reference, character for character.

    `strip` ignores white space around both, `casefold` the difference of upper and lower case.
    Characters that look alike are different; an answer that is no text never matches.
    """

    strip: bool = True
    casefold: bool = False

    in_process: ClassVar[bool] = True

    def score(self, task: Task, answer: Any) -> bool:
        """Compare `answer` with the task's.

        Raises:
            TypeError: the task's answer is no text.
        """
        if not isinstance(task.answer, str):
            raise TypeError(f"the task's answer is {task.answer!r}, expected a text")
        return same_text(answer, task.answer, strip=self.strip, casefold=self.casefold)
