"""What a comparison saw, as text: equal values have one, whatever shows them."""

import enum
import math
import unittest
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple, cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.swe.build.decoying import Change, validated
from agentrl.envs.swe.build.spots import find_spots
from agentrl.envs.swe.report import Saw, SuiteReport
from agentrl.envs.swe.rewriting import rewrite_tests
from agentrl.envs.swe.runner import AT, MOST_TEXT, SAW, Comparisons, literal
from agentrl.envs.swe.verdict import is_same_at


class Count(int):
    pass


class Word(enum.StrEnum):
    ONE = "one"


class Pair(NamedTuple):
    one: object
    other: object


class When(datetime):
    pass


class Rows(Sequence[object]):
    """Compares like a list, as packages have it."""

    def __init__(self, rows: Sequence[object]) -> None:
        self._rows = rows

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return list(self) == other

    def __hash__(self) -> int:
        return 0


_WAYS: Mapping[type, Sequence[Callable[[Any], object]]] = {
    int: (Count, Fraction, Decimal, complex),
    float: (Fraction, Decimal, complex),
    bytes: (bytearray, memoryview),
    tuple: (lambda value: Pair(*value),),
    list: (UserList, Rows),
    dict: (OrderedDict, ChainMap, MappingProxyType, UserDict, lambda v: defaultdict(int, v)),
    frozenset: (set, lambda value: dict.fromkeys(value).keys()),
    datetime: (lambda value: value.astimezone(timezone(timedelta(hours=5.5))),),
}
_NEW_YEAR = datetime.fromisoformat("2020-01-01")
_HASHED = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 53), 1 << 53)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
)
_VALUES = st.recursive(
    _HASHED
    | st.binary(max_size=4)
    | st.integers(0, 1 << 37).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.frozensets(_HASHED, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=6,
)


def related(value: Any, draw: st.DataObject) -> object:
    """An equal value of other types, through and through."""
    kind = cast("Any", type(value))
    same: Any = value
    if kind.__name__ in ("list", "tuple"):
        same = kind(related(item, draw) for item in value)
    elif kind is dict:
        same = {key: related(item, draw) for key, item in value.items()}
    ways: Sequence[Callable[[Any], object]] = _WAYS.get(kind, ())
    if kind is float and math.isinf(value):
        ways = (complex,)
    return draw.draw(st.sampled_from([lambda same: same, *ways]))(same)


@settings(max_examples=60)
@given(_VALUES, st.data())
def test_equal_values_of_related_types_are_the_same(value: object, data: st.DataObject) -> None:
    other = related(value, data)
    assert other == value
    assert is_same_at("", literal(other), literal(value))


@settings(max_examples=100)
@given(_VALUES, _VALUES)
def test_values_that_differ_have_other_texts(one: object, other: object) -> None:
    if one != other and not (isinstance(one, float) or isinstance(other, float)):
        assert literal(one) != literal(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1.0),
        (0.0, -0.0),
        (1e22, 10**22),
        (Word.ONE, "one"),
        ({1: 2, 3: 4}, {3: 4, 1: 2}),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("0.1"), Fraction(1, 10)),
        (range(0, 3, 2), range(0, 4, 2)),
        (range(0), range(5, 5)),
        ({1: "x"}.items(), {(1, "x")}),
        (Path("a") / "b", PurePosixPath("a/b")),
        (timedelta(hours=24), timedelta(days=1)),
        (_NEW_YEAR.replace(fold=1), When(2020, 1, 1)),
        (datetime(2020, 7, 1, 2, tzinfo=ZoneInfo("UTC")), datetime(2020, 7, 1, 2, tzinfo=UTC)),
        (time(1, tzinfo=UTC), time(1, tzinfo=timezone(timedelta(0), "Z"))),
        (time(1, tzinfo=UTC), time(3, tzinfo=timezone(timedelta(hours=2)))),
        (Pair([1], Rows([2])), ([1], [2])),
    ],
)
def test_what_python_takes_for_equal_is_equal(one: object, other: object) -> None:
    assert one == other
    assert literal(one) == literal(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_NEW_YEAR, datetime(2020, 1, 1, tzinfo=UTC)),
        (time(1), time(1, tzinfo=UTC)),
        (time(23, tzinfo=UTC), time(1, tzinfo=timezone(timedelta(hours=2)))),
        (range(3), [0, 1, 2]),
        ([1], (1,)),
        ({}, set[object]()),
        (b"a", "a"),
        (1j, 0),
    ],
)
def test_what_python_tells_apart_is_not_equal(one: object, other: object) -> None:
    assert one != other
    assert not is_same_at("", literal(one), literal(other))


@pytest.mark.parametrize("value", [object(), [object()], {1: lambda: 0}])
def test_what_has_no_text_of_its_own_says_nothing(value: object) -> None:
    with pytest.raises(ValueError, match="address"):
        literal(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 0.1 + 0.2, (2.0000001,)], [1, 0.3, (2.0,)]),
        ({0.1 + 0.2, 5.0}, {0.3, 5.0}),
        ([(), 0.1 + 0.2], [(), 0.3]),
        ([math.inf, 0.1 + 0.2], [math.inf, 0.3]),
        ({"a": {0.1 + 0.2}}, {"a": {0.3}}),
        (1e-17, 0.0),
        (1.0000000001e30, 1e30),
        (Fraction(1, 3), 0.33333333),
        ([i / 3 for i in range(150)], [i * 0.3333333333 for i in range(150)]),
    ],
)
def test_rounding_makes_no_other_value(one: object, other: object) -> None:
    assert is_same_at("", literal(one), literal(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("100001", "100000"),
        ("[0.1]", "(0.1,)"),
        ("{0.1, 0.2}", "{0.1}"),
        ("?", "1"),
        # What only who forges a report writes.
        ("{[]: 1}", "{1: 1}"),
        ("9" * 400, "0.5"),
        ("[" * 900, "[1]"),
        ("-" * 900 + "1", "0.5"),
    ],
)
def test_other_values_and_texts_that_are_none_are_not_the_same(one: str, other: str) -> None:
    assert not is_same_at("", one, other)
    assert not is_same_at("", other, one)


def tell_compared(assertion: str, found: object, expected: object) -> tuple[str, str, bool]:
    """The site, what is told of what was found, and whether the assertion held."""
    seen = Comparisons()

    def at(_: str) -> Callable[[object], object]:
        return Comparisons().at("")  # what held is told too

    names = {SAW: seen.saw, AT: at, "self": unittest.TestCase(), "f": found, "e": expected}
    seen.begin()
    held = True
    try:
        exec(rewrite_tests(assertion, {}), names)
    except AssertionError:
        held = False
    site, _, text, _ = seen.told()
    return str(site), str(text), held


_COUNT, _SEQUENCE = "self.assertCountEqual(f, e)", "self.assertSequenceEqual(f, second=e)"


@pytest.mark.parametrize(
    ("assertion", "found", "true"),
    [
        (_COUNT, lambda: [3, 1, 2, 1], [1, 1, 2, 3]),
        (_COUNT, lambda: (3.0, 2, 1), [1, 2, 3]),
        (_COUNT, lambda: iter("ba"), ["a", "b"]),
        (_COUNT, lambda: {"b": 1, "a": 2}, ("a", "b")),
        (_COUNT, lambda: [[2], {1: 2}, None], [{1: 2}, None, [2]]),
        (_SEQUENCE, lambda: (1, [2]), [1, [2]]),
        (_SEQUENCE, lambda: range(3), [0, 1, 2]),
        (_SEQUENCE, lambda: deque("ab"), "ab"),
        (_SEQUENCE, lambda: Rows([1]), (1,)),
        ("assert f == e", lambda: Counter(a=2, b=0), Counter(a=2)),
        ("self.assertEqual(f, e)", lambda: Counter(a=2, c=0), Counter(a=2, b=0)),
        ("assert f == e", lambda: Counter(a=2, b=0), {"a": 2, "b": 0}),
    ],
)
def test_what_an_assertion_takes_for_equal_is_the_same(
    assertion: str, found: Callable[[], object], true: object
) -> None:
    site, text, held = tell_compared(assertion, found(), true)
    assert held
    assert is_same_at(site, text, tell_compared(assertion, true, true)[1])


@pytest.mark.parametrize(
    ("assertion", "found", "true"),
    [
        (_COUNT, [1, 1, 2], [1, 2, 2]),
        (_COUNT, [1, 2], [1, 2, 2]),
        (_COUNT, [1, 2, 2], [1, 2]),
        (_COUNT, [[1, 2]], [[2, 1]]),
        (_COUNT, ["ab"], ["ba"]),
        (_COUNT, [(1,)], [[1]]),
        (_SEQUENCE, [1, 2], [2, 1]),
        (_SEQUENCE, [(1,)], [[1]]),
        (_SEQUENCE, "ab", ["ab"]),
        ("assert f == e", (1, 2), [1, 2]),
        ("assert f == e", [2, 1], [1, 2]),
        ("assert f == e", Counter(a=2, b=0), {"a": 2}),
        ("assert f == e", {"a": 2, "b": 0}, Counter(a=2)),
        ("assert f == e", Counter(a=2, b=1), Counter(a=2)),
    ],
)
def test_what_an_assertion_tells_apart_is_not_the_same(
    assertion: str, found: object, true: object
) -> None:
    site, text, held = tell_compared(assertion, found, true)
    assert not held
    assert not is_same_at(site, text, tell_compared(assertion, true, true)[1])


@pytest.mark.parametrize(
    "text", ["?", "{1, 2}", "1", "[" * 900, "-" * 900 + "1", "[1, 2", "[]", "[2]", "[2, 1, 1]"]
)
def test_another_list_or_none_has_not_the_same_items(text: str) -> None:
    assert not is_same_at("1.0 items", text, "[2, 1]")
    assert not is_same_at("1.0 items", "[2, 1]", text)


def has_decoy(expression: str, to: object, true: object, shown: object) -> bool:
    """Whether the search takes a decoy, by the values of its run."""
    (spot,) = find_spots("t.py", f"def test_it():\n    {expression}\n")
    saw = Saw(site=next(iter(spot.sites)), count=1, sides=(literal(true), literal(shown)))
    test = "t.py::test_it"
    report = SuiteReport(outcomes={test: "failed"}, saws={test: saw}, broken={}, status=1)
    change = Change(spot=spot, to=to, text=repr(to))
    return bool(validated([change], report, frozenset([test]), "", {}))


class Opaque:
    """Equal to its text, which its `repr` shows."""

    def __repr__(self) -> str:
        return "Opaque('1.2')"


@pytest.mark.parametrize(
    ("expression", "to", "true", "shown", "found"),
    [
        ("assert f() == '1.2'", "1.3", "1.2", "1.3", True),
        # Another repair may give what it equals.
        ("assert f() == '1.2'", "1.3", Opaque(), "1.3", False),
        ("assert f() == Decimal('1.2')", "1.3", Opaque(), Decimal("1.3"), False),
        ("assert f() == [1, 2]", [1, 3], Rows([1, 2]), [1, 3], True),
        ("assert f() == Fraction('1/3')", "2/3", Fraction(1, 3), Fraction(2, 3), True),
        ("assert f() == time(1)", 2, time(1), time(2), True),
        ("assert f() == time(1)", 2, timedelta(1), time(2), False),
        ("assert f() == approx(0.5)", 0.75, 0.5, Opaque(), True),
        ("assert f() == 'x'", "y", "x" * MOST_TEXT, "y", False),
    ],
)
def test_a_decoy_needs_a_true_value_of_the_expected_kind(
    expression: str, to: object, true: object, shown: object, *, found: bool
) -> None:
    assert has_decoy(expression, to, true, shown) is found


@pytest.mark.parametrize(
    "expression",
    [
        "assert f() == approx(0.5, abs=0.1)",
        "assert f() == [pytest.approx(0.5, 0.1)]",
        "self.assertAlmostEqual(f(), 0.5, 2)",
        "self.assertAlmostEqual(f(), 0.5, delta=0.1)",
    ],
)
def test_what_says_how_near_is_near_enough_has_no_decoy(expression: str) -> None:
    assert not find_spots("t.py", f"def test_it():\n    {expression}\n")
    plain = "self.assertAlmostEqual(f(), 0.5)"
    assert find_spots("t.py", f"def test_it():\n    {plain}\n")
