"""A wrong value that reads like a right one: same type, same shape, only not what is right."""

import itertools
import random
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar, cast

from agentrl.envs.swe.runner import literal

_MOST_SECRET: Final = 10
_NEAR: Final = 1000
"""Numbers that differ by less than this part of them may both pass a test for nearness; near zero
by less than the square of that."""
_SHORT: Final = 3
_LONG: Final = 100_000
"""A number as long as this is no secret beside one a step away, so its digits are all changed."""
_Item = TypeVar("_Item")


def other_value(
    value: object, wrong: Sequence[object], siblings: Sequence[object], rng: random.Random
) -> object | None:
    """Another value for a literal, or None: one of those that tell the least of it.

    None of the wrong ones: the code with the bug would know it for what it gives itself. Where the
    true one can be guessed nothing may show that it is another one, so that it is no other case's.

    Args:
        value: what is right.
        wrong: what wrong programs have given in its place.
        siblings: what is right in other cases.
        rng: chooses.
    """
    # A short one stands about by chance.
    cases = {text for text in map(literal, siblings) if len(text) > _SHORT}
    given = {literal(one) for one in wrong}
    offers = (siblings, [_change_value(value, rng) for _ in range(20)])
    ranked = [
        [
            (secret, other)
            for other in offered
            if fits(value, other) and literal(other) not in given
            if (secret := _rate_secrecy(value, other)) or literal(other) not in cases
        ]
        for offered in offers
    ]
    most = max((secret for rank in ranked for secret, _ in rank), default=0)
    best = [[other for secret, other in rank if secret == most] for rank in ranked]
    # Any of them: one that stands in many tests would show that it is a decoy.
    return next((rng.choice(others) for others in best if others), None)


def fits(value: object, other: object) -> bool:
    """Same type and shape, and surely not equal."""
    if _describe_shape(value) != _describe_shape(other) or literal(value) == literal(other):
        return False
    if isinstance(value, int | float) and isinstance(other, int | float):
        exact = isinstance(value, int) and min(abs(value), abs(other)) < 1 << 53
        return exact or abs(value - other) * _NEAR > max(abs(value), abs(other), 1 / _NEAR)
    return True


def secrecy(value: object, other: object, text: str) -> int:
    """How many guesses between two it takes to know a value, for who sees another one and a text.

    Only what the other one has not counts, and a quarter of its bits: it may be plausible. One
    guess counts as none: it is no harder to tell by it whether the other one is there at all.
    """
    return 0 if stands_in(text, value) else _rate_secrecy(value, other)


def stands_in(text: str, value: object) -> bool:
    """Whether a text has a value in it, maybe with its escapes."""
    written = value if isinstance(value, str) else repr(value)
    return written in text or repr(value).strip("'\"") in text


def _rate_secrecy(value: object, other: object) -> int:
    guesses = int(_estimate_bits(_keep_difference(value, other)) / 4)
    return min(_MOST_SECRET, guesses) if guesses > 1 else 0


def _keep_difference(value: object, other: object) -> object:
    """What a value has and another one of its type has not."""
    match value, other:
        case bool(), bool():
            return value
        case int(), int():
            return min(value, value - other, key=abs)
        case float(), float():
            return _strip_common_ends(repr(value), repr(other))
        case (str(), str()) | (bytes(), bytes()):
            return _strip_common_ends(cast("str", value), cast("str", other))
        case (list() | tuple() | set() | frozenset(), list() | tuple() | set() | frozenset()):
            return _list_new_items(cast("Iterable[object]", value), cast("Iterable[object]", other))
        case dict(), dict():
            mine, others = cast("dict[object, object]", value), cast("dict[object, object]", other)
            return _list_new_items(mine.items(), others.items())
        case _:
            return value


def _strip_common_ends(value: str, other: str) -> str:
    """A text without what another one begins and ends with too."""
    begin = _count_common_prefix(value, other)
    value, other = value[begin:], other[begin:]
    return value[: len(value) - _count_common_prefix(value[::-1], other[::-1])]


def _count_common_prefix(value: str, other: str) -> int:
    alike = itertools.takewhile(all, ((a == b,) for a, b in zip(value, other, strict=False)))
    return sum(1 for _ in alike)


def _list_new_items(value: Iterable[object], other: Iterable[object]) -> list[object]:
    """Items that are only among the first; if one stands for another, what is new about it."""
    new, gone = {literal(item): item for item in value}, {literal(item): item for item in other}
    only = [item for text, item in new.items() if text not in gone]
    lost = [item for text, item in gone.items() if text not in new]
    return [_keep_difference(only[0], lost[0])] if len(only) == len(lost) == 1 else only


def _describe_shape(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(_describe_shape(item) for item in cast("tuple[object, ...]", value))
    if isinstance(value, list | set | frozenset):
        items = cast("Iterable[object]", value)
        return type(items), frozenset(_describe_shape(item) for item in items)
    if isinstance(value, dict):
        items = cast("dict[object, object]", value)
        return dict, frozenset(_describe_shape(item) for item in items.values())
    if isinstance(value, str):
        return str, bool(value), value.isalnum(), "\n" in value, _mask_digits(value)
    if isinstance(value, float):
        return float, _mask_digits(f"{value!r}".partition(".")[2])
    return type(value)


def _mask_digits(text: str) -> str:
    """A number, a date or a time with no digit told from another; other texts have none."""
    return "" if any(map(str.isalpha, text)) else re.sub(r"\d", "0", text)


def _estimate_bits(value: object) -> float:
    """A rough measure of how much there is to know about a value."""
    if isinstance(value, bool) or value is None:
        return 1.0
    if isinstance(value, int):
        return float(value.bit_length())
    if isinstance(value, float):
        return 3.0 * len(repr(value))
    if isinstance(value, str | bytes):
        return 4.0 * len(value)
    if isinstance(value, dict):
        items = cast("dict[object, object]", value)
        return sum(_estimate_bits(key) + _estimate_bits(item) for key, item in items.items())
    if isinstance(value, list | tuple | set | frozenset):
        return sum(_estimate_bits(item) for item in cast("Iterable[object]", value))
    return 0.0


def _change_value(value: object, rng: random.Random) -> object | None:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int) and abs(value) >= _LONG:
        return int(_draw_other_digits(str(value), rng))
    if isinstance(value, int):
        step = rng.choice((1, 1, 1, 2, 3, 10)) * rng.choice((-1, 1))
        return value + step if value < 0 or value + step >= 0 else value - step
    if isinstance(value, float):
        return round(value + rng.choice((-1, 1)) * 10.0 ** rng.randint(-1, 1), len(repr(value)))
    if isinstance(value, str):
        return _change_text(value, rng)
    if isinstance(value, bytes):
        return bytes(_reorder_items([*value], rng))
    if isinstance(value, list):
        return _change_one_item(cast("list[object]", value), rng)
    if isinstance(value, tuple):
        return tuple(_change_one_item([*cast("tuple[object, ...]", value)], rng))
    if isinstance(value, dict) and value:
        items = cast("dict[object, object]", value)
        key = rng.choice([*items])
        return {**items, key: _change_value(items[key], rng)}
    return None


def _change_text(text: str, rng: random.Random) -> str:
    digits = [i for i, char in enumerate(text) if char in string.digits]
    if len(digits) == len(text) >= len(str(_LONG)):
        return _draw_other_digits(text, rng)
    if digits:
        i = rng.choice(digits)
        return text[:i] + rng.choice(string.digits) + text[i + 1 :]
    return "".join(_reorder_items([*text], rng))


def _draw_other_digits(number: str, rng: random.Random) -> str:
    """Another number of the same length; the first digit stays."""
    return number[0] + "".join(rng.choice(string.digits) for _ in number[1:])


def _reorder_items(items: list[_Item], rng: random.Random) -> list[_Item]:
    """Without one of them, with one twice, or with two neighbours the other way round."""
    if not items:
        return items
    i = rng.randrange(len(items))
    ways: tuple[Callable[[], list[_Item]], ...] = (
        lambda: [*items[:i], *items[i + 1 :]],
        lambda: [*items[: i + 1], *items[i:]],
        lambda: [*items[:i], *reversed(items[i : i + 2]), *items[i + 2 :]],
    )
    return rng.choice(ways)()


def _change_one_item(items: list[object], rng: random.Random) -> list[object]:
    if items and rng.random() < 0.5:
        i = rng.randrange(len(items))
        return [*items[:i], _change_value(items[i], rng), *items[i + 1 :]]
    return _reorder_items(items, rng)
