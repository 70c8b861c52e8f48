"""The comparisons: what must be the same, what must not, and that no value can hurt."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.verifiers.compare import (
    MAX_DEPTH,
    NotJson,
    read_json,
    same_json,
    same_lines,
    same_printed_json,
    same_text,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
LINES = st.lists(st.text(alphabet="ab 1", max_size=5).map(lambda line: line.rstrip()), max_size=5)

SAME_LINES = [
    ("1\n2\n3", "1\n2\n3\n"),
    ("1\n2\n3\n\n\n", "1\n2\n3"),
    ("1 \n2\t\n3", "1\n2\n3"),
    ("1\r\n2\r\n3\r\n", "1\n2\n3\n"),
    ("", "\n"),
    (" 1", " 1"),
    ("a\n\nb", "a\n\nb\n"),
]
OTHER_LINES = [
    ("1 2 3", "1\n2\n3"),
    ("123", "1\n2\n3"),
    ("1\n2", "1\n2\n3"),
    ("1\n3\n2", "1\n2\n3"),
    (" 1", "1"),
    ("a\nb", "a\n\nb"),
    ("\na", "a"),
    ("a  b", "a b"),
    ("A", "a"),
    ("1.0", "1"),
    ("a\x0bb", "a\nb"),
    ("a\u2028b", "a\nb"),
    (["1", "2"], "1\n2"),
    (None, ""),
]
SAME_JSON: list[tuple[object, object]] = [
    (1, 1), (0.1 + 0.2, 0.3), ([1, [2]], [1, [2]]), ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (None, None), (0.0, -0.0), (1e300, 1e300 * (1 + 1e-12)), ("é", "é"), (10**30, 10**30),
]  # fmt: skip
OTHER_JSON: list[tuple[object, object]] = [
    (1, True), (1, 1.0), ("1", 1), ([1], [1, 2]), ([1, 2], [1]), ({"a": 1}, {"a": True}),
    ({}, {"a": 1}), (None, 0), (1e-13, 0.0), (0.0, 1e-300), (0.3, 0.3000001), (10**30, 10**30 + 1),
    ([], {}), ("", None), (False, 0), ([0.0], [1e-13]),
]  # fmt: skip


@pytest.mark.parametrize(("found", "wanted"), SAME_LINES)
def test_the_same_lines(found: str, wanted: str) -> None:
    assert same_lines(found, wanted)


@pytest.mark.parametrize(("found", "wanted"), OTHER_LINES)
def test_other_lines(found: object, wanted: str) -> None:
    assert not same_lines(found, wanted)


@given(LINES, LINES, st.sampled_from(["\n", "\r\n", " \n", "\t\r\n"]))
def test_lines_are_the_same_if_they_are_however_they_end(
    found: list[str], wanted: list[str], end: str
) -> None:
    def without_empty_end(lines: list[str]) -> list[str]:
        return "\n".join(lines).rstrip("\n").split("\n")

    text = "".join(line + end for line in found)
    assert same_lines(text, "\n".join(wanted)) == (
        without_empty_end(found) == without_empty_end(wanted)
    )


@pytest.mark.parametrize(("found", "wanted"), SAME_JSON)
def test_the_same_json(found: object, wanted: object) -> None:
    assert same_json(found, wanted)
    assert same_json(wanted, found)


@pytest.mark.parametrize(("found", "wanted"), OTHER_JSON)
def test_other_json(found: object, wanted: object) -> None:
    assert not same_json(found, wanted)
    assert not same_json(wanted, found)


@given(JSON, st.booleans(), st.sampled_from([None, 1, 4]))
def test_json_is_the_same_however_it_is_written(
    value: object, ascii_only: bool, indent: int | None
) -> None:
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators)
    assert same_printed_json(f"\n{text} \n", value)


@given(JSON, JSON)
def test_different_values_are_different_json(one: object, other: object) -> None:
    if json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True):
        assert same_json(one, other)
    elif not (isinstance(one, float) and isinstance(other, float)):
        assert same_json(one, other) == same_json(other, one)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"a":1,"a":2}', {"a": 2}),
        ('{"a":2,"a":2}', {"a": 2}),
        ('{"a":1,"\\u0061":2}', {"a": 2}),
        ('[0,{"b":{"a":1,"c":0,"a":2}}]', [0, {"b": {"a": 2, "c": 0}}]),
        ('{"":1,"":1}', {"": 1}),
    ],
)
def test_an_object_that_has_a_key_twice_is_equal_to_none(text: str, wanted: object) -> None:
    assert json.loads(text) == wanted
    assert not same_printed_json(text, wanted)
    with pytest.raises(NotJson, match="an object has a key twice"):
        read_json(text)


@pytest.mark.parametrize(
    "text",
    ["", "{", "NaN", "[Infinity]", "1 2", "'a'", "{1: 2}", "9" * 10_000, "[" * 100_000, "\x00"],
)
def test_what_is_no_json_is_equal_to_nothing(text: str) -> None:
    assert not same_printed_json(text, None)
    with pytest.raises(NotJson):
        read_json(text)


def test_json_has_a_greatest_depth() -> None:
    def nested(depth: int) -> str:
        return "[" * depth + "]" * depth

    assert read_json(nested(MAX_DEPTH))
    with pytest.raises(NotJson, match="nested deeper than 64"):
        read_json(nested(MAX_DEPTH + 2))


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_floats_agree_in_nine_digits(value: float) -> None:
    assert same_json(value, math.nextafter(value, math.inf))
    assert not same_json(value, value * 1.00001)
    assert not same_json(value, 0.0)


def test_text() -> None:
    assert same_text(" a\n", "a")
    assert same_text("A", "a", casefold=True)
    assert not same_text(" a", "a", strip=False)
    assert not same_text("A", "a")
    assert not same_text("a\u0301", "á")
    assert not same_text(None, "")
