from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, PositiveInt

from agentrl.config import Config
from agentrl.config.describe import describe_bounds, placeholder, shown


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Everything(Config):
    plain: int = 1
    positive: PositiveInt = 1
    share: float = Field(default=0.5, gt=0, le=1)
    limited: float | None = Field(default=None, lt=2)
    inner: Annotated[int, Field(ge=3)] | Literal["auto"] = "auto"
    flag: bool = False
    text: str = "x"
    short: str = Field(default="x", min_length=1, max_length=9)
    path: Path = Path("p")
    color: Color = Color.RED
    choice: Literal["a", "b", "c"] = "a"
    names: tuple[str, ...] = ()
    few: list[int] = Field(default=[1], min_length=1)
    pair: tuple[int, str] = (1, "a")
    table: Mapping[str, int] = Field(default={})


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("plain", "INT"),
        ("positive", "INT"),
        ("share", "NUMBER"),
        ("limited", "NUMBER|none"),
        ("inner", "INT|auto"),
        ("flag", "BOOL"),
        ("text", "TEXT"),
        ("short", "TEXT"),
        ("path", "PATH"),
        ("color", "red|blue"),
        ("choice", "a|b|c"),
        ("names", "LIST"),
        ("few", "LIST"),
        ("pair", "LIST"),
        ("table", "TABLE"),
    ],
)
def test_a_field_in_one_word(name: str, word: str) -> None:
    assert placeholder(Everything.model_fields[name]) == word


def test_bounds_are_of_the_field_alone() -> None:
    assert describe_bounds(Everything.model_fields["share"]) == "above 0 and at most 1"
    assert describe_bounds(Everything.model_fields["limited"]) == "below 2"
    assert describe_bounds(Everything.model_fields["plain"]) == ""


def test_shown_values_are_short() -> None:
    assert shown("abc") == '"abc"'
    assert shown("-1") == "-1"
    assert shown(True) == "true"
    assert shown("x" * 200) == '"' + "x" * 59 + "... (202 characters)"
