"""Fitting values to schemas."""

from typing import Any

import pytest

from agentrl.tokens.formats.schema import SchemaMismatch, fit
from agentrl.types import Json

LIST: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
OPTIONAL: dict[str, Any] = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
NESTED: dict[str, Any] = {"properties": {"p": {"type": "object", "required": ["q"]}}}


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        (5, {"type": "integer"}, 5),
        (5.0, {"type": "integer"}, 5),
        (5, {"type": "number"}, 5),
        (5.5, {"type": ["integer", "number"]}, 5.5),
        ("5", {"type": ["integer", "string"]}, "5"),
        (None, OPTIONAL, None),
        (3.0, OPTIONAL, 3),
        ([1, 2.0], LIST, [1, 2]),
        ([], LIST, []),
        ({"x": 1}, {"type": "object"}, {"x": 1}),
        ({"x": 1}, {"additionalProperties": {"type": "integer"}}, {"x": 1}),
        ("a", {"enum": ["a", "b"]}, "a"),
        ("anything", {}, "anything"),
        ({"x": "y"}, {"properties": {"x": True}}, {"x": "y"}),
    ],
)
def test_what_fits(value: Json, schema: dict[str, Any], expected: Json) -> None:
    fitted = fit(value, schema)
    assert fitted == expected
    assert type(fitted) is type(expected)


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        ("5", {"type": "integer"}, "is the string '5', expected integer"),
        (True, {"type": "integer"}, "is true, expected integer"),
        (1, {"type": "boolean"}, "is the integer 1, expected boolean"),
        (None, {"type": "string"}, "is null, expected string"),
        (2.5, OPTIONAL, "is the number 2.5, expected integer; or"),
        ([1, "x"], LIST, r"argument '\[1\]' is the string 'x'"),
        ("c", {"enum": ["a", "b"]}, r"expected one of \['a', 'b'\]"),
        (2, {"const": 3}, "is the integer 2, expected the integer 3"),
        ({"p": {}}, NESTED, r"argument 'p\.q' is missing, it is required"),
        ({"x": "a"}, {"additionalProperties": {"type": "integer"}}, "argument 'x' is the string"),
        (
            {"nmae": 1},
            {"properties": {"name": {}}, "additionalProperties": False},
            "argument 'nmae' is not expected, did you mean 'name'",
        ),
        ({"z": 1}, {"properties": {"a": {}}, "additionalProperties": False}, r"known are \['a'\]"),
        ([], {"type": "object"}, "the arguments object is an array, expected object"),
    ],
)
def test_what_does_not_fit_is_named(value: Json, schema: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        fit(value, schema)
