from enum import Enum
from typing import Any, Literal, Optional

import pytest

from agentrl.errors import ConfigError, ToolError
from agentrl.tools import ToolSpec, tool, tool_spec, tools_of
from agentrl.types import Json


class Color(Enum):
    RED = "red"
    BLUE = "blue"


def spec_of(function: object) -> ToolSpec:
    spec = tool_spec(function)
    assert spec is not None
    return spec


@tool
def paint(
    what: str,
    color: Color,
    coats: int = 1,
    size: float = 1.0,
    wet: bool = False,
    sides: list[Literal["left", "right"]] = [],  # noqa: B006
    labels: dict[str, int] | None = None,
    note: Optional[str] = None,  # noqa: UP045
) -> str:
    """Paint a thing.

    It dries by itself.

    Args:
        what: the thing.
        color: its color,
            which may be long to describe.
        coats: how often.
        size: how large.
        wet: still wet.
        sides: which sides.
        labels: numbers by name.
        note: anything else.
    """
    return f"{what} {color.value} {coats} {size} {wet} {sides} {labels} {note}"


def test_the_schema_says_what_hints_and_docstring_say() -> None:
    schema = spec_of(paint).schema
    assert (schema.name, schema.description) == ("paint", "Paint a thing.\n\nIt dries by itself.")
    described: Any = schema.parameters
    assert described["type"] == "object"
    assert described["required"] == ["what", "color"]
    properties = described["properties"]
    assert properties["what"] == {"type": "string", "description": "the thing."}
    assert properties["color"]["enum"] == ["red", "blue"]
    assert properties["color"]["description"].startswith("its color,\nwhich may")
    assert properties["coats"] == {"type": "integer", "description": "how often.", "default": 1}
    assert (properties["size"]["type"], properties["wet"]["type"]) == ("number", "boolean")
    assert properties["sides"]["items"] == {"enum": ["left", "right"], "type": "string"}
    assert properties["labels"]["anyOf"][0]["additionalProperties"] == {"type": "integer"}
    assert properties["note"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert "title" not in str(described)
    assert "$" not in str(described)


def test_arguments_arrive_as_the_hints_say() -> None:
    given: dict[str, Json] = {"what": "a", "color": "red", "size": 2, "sides": ["left"]}
    arguments = spec_of(paint).arguments.bind(given)
    assert arguments == {"what": "a", "color": Color.RED, "size": 2.0, "sides": ["left"]}
    assert isinstance(arguments["size"], float)
    assert paint(**arguments) == "a red 1 2.0 False ['left'] None None"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"what": "a"}, "argument color is missing"),
        ({"what": 1, "color": "red"}, "argument what: .* got 1"),
        ({"what": "a", "color": "green"}, "argument color: .*'red' or 'blue'.* got \"green\""),
        ({"what": "a", "color": "red", "coats": "2"}, "argument coats: .*integer"),
        ({"what": "a", "color": "red", "coats": True}, "argument coats: .*integer"),
        ({"what": "a", "color": "red", "sides": ["up"]}, r"argument sides\.0"),
        ({"what": "a", "color": "red", "self": 1}, "unknown argument self"),
        ({"what": "x" * 1000, "color": ["y" * 1000]}, "argument color"),
        ({"what": "\ud800", "color": "red"}, "paint: "),
    ],
)
def test_arguments_that_do_not_fit_name_their_field(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolError, match=message) as caught:
        spec_of(paint).arguments.bind(arguments)
    assert len(str(caught.value)) < 300


def hintless(x):  # type: ignore[no-untyped-def]
    """Do it.

    Args:
        x: what.
    """


def undocumented(x: int) -> None:
    """Do it."""


def silent(x: int) -> None:
    pass


def spread(*x: int) -> None:
    """Do it."""


def strange(x: memoryview) -> None:
    """Do it.

    Args:
        x: what.
    """


def unknown(x: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Do it.

    Args:
        x: what.
    """


async def slow() -> None:
    """Do it."""


REFUSED: list[tuple[Any, str]] = [
    (hintless, "tool hintless has no type hint for parameter x"),
    (undocumented, "tool undocumented does not describe parameter x"),
    (silent, "tool silent has no docstring"),
    (spread, r"tool spread takes \*x: int"),
    (strange, "tool strange has a parameter that JSON cannot express"),
    (unknown, "tool unknown has a type hint that cannot be resolved"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_what_a_schema_cannot_be_made_of_is_refused_in_one_sentence(
    function: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        tool(function)
    assert "\n" not in str(caught.value)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="isolated and async"):
        tool(isolated=True)(slow)
    with pytest.raises(ConfigError, match="timeout_s=0"):
        tool(timeout_s=0)(slow)
    for name in ("a b", ""):
        with pytest.raises(ConfigError, match="no name for a tool"):
            tool(name=name)(slow)


def test_tools_of_a_class_are_its_methods_in_order_and_overrides_count() -> None:
    class Parent:
        @tool
        def one(self) -> str:
            """One."""
            return "1"

        @tool(name="zwei")
        async def two(self) -> str:
            """Two."""
            return "2"

        @tool
        @staticmethod
        def three() -> str:
            """Three."""
            return "3"

    class Child(Parent):
        def one(self) -> str:
            return "no tool any more"

        @tool
        def four(self) -> str:
            """Four."""
            return "4"

    assert [spec.name for spec in tools_of(Parent)] == ["one", "zwei", "three"]
    assert [spec.takes_self for spec in tools_of(Parent)] == [True, True, False]
    assert [spec.name for spec in tools_of(Child)] == ["zwei", "three", "four"]

    class Twice(Parent):
        @tool(name="one")
        def other(self) -> str:
            """Other."""
            return ""

    with pytest.raises(ConfigError, match="Twice has two tools named one"):
        tools_of(Twice)
