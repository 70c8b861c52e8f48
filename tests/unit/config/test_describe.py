from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, PositiveInt

from agentrl.config import Config
from agentrl.config.describe import bounds, expected, placeholder, shown


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
    ("name", "phrase", "word"),
    [
        ("plain", "an integer", "INT"),
        ("positive", "an integer above 0", "INT"),
        ("share", "a number above 0 and at most 1", "NUMBER"),
        ("limited", "a number below 2 or none", "NUMBER|none"),
        ("inner", 'an integer of at least 3 or "auto"', "INT|auto"),
        ("flag", "true or false", "BOOL"),
        ("text", "text", "TEXT"),
        ("short", "text of at least 1 characters and at most 9 characters", "TEXT"),
        ("path", "a path", "PATH"),
        ("color", '"red" or "blue"', "red|blue"),
        ("choice", '"a", "b" or "c"', "a|b|c"),
        ("names", "a list, each item text", "LIST"),
        ("few", "a list of at least 1 items, each item an integer", "LIST"),
        ("pair", "a list of 2 values", "LIST"),
        ("table", "a table of names and values", "TABLE"),
    ],
)
def test_a_field_in_words(name: str, phrase: str, word: str) -> None:
    field = Everything.model_fields[name]
    assert expected(field) == phrase
    assert placeholder(field) == word


def test_bounds_are_the_rest_of_the_phrase() -> None:
    assert bounds(Everything.model_fields["share"]) == "above 0 and at most 1"
    assert bounds(Everything.model_fields["limited"]) == "below 2"
    assert bounds(Everything.model_fields["plain"]) == ""


def test_shown_values_are_short() -> None:
    assert shown("abc") == '"abc"'
    assert shown("-1") == "-1"
    assert shown(True) == "true"
    assert shown("x" * 200) == '"' + "x" * 59 + "... (202 characters)"
