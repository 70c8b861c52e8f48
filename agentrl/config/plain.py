"""Plain data (what TOML holds) as JSON, so that pydantic checks it in its strict JSON mode.

Strict JSON is exactly what a configuration file needs: text is no number and `true` is no integer,
while an array may be a tuple and a text an enum or a path.
"""

import json
from collections.abc import Mapping
from enum import Enum
from numbers import Integral
from pathlib import PurePath
from typing import cast


def to_plain(value: object) -> object:
    """The value as JSON has it.

    Raises:
        TypeError: it holds an object that is not data.
        ValueError: it holds text that is not Unicode, or a number that is too long.
    """
    return json.loads(json.dumps(value, default=plain, ensure_ascii=False).encode())


def plain(value: object) -> object:
    """A value that JSON does not have as one that it has; what it has is given back.

    Raises:
        TypeError: the value is not data.
    """
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str() | list() | tuple() | dict():
            return cast(object, value)
        case Integral():  # numpy's
            return int(value)
        case PurePath():
            return str(value)
        case set() | frozenset():
            return list(cast("set[object]", value))
        case _:
            raise TypeError(f"got {type(value).__name__}, expected plain data")


def as_list(value: object) -> list[object] | None:
    """The items of a list or tuple."""
    return list(cast("list[object]", value)) if isinstance(value, (list, tuple)) else None


def as_mapping(value: object) -> Mapping[str, object] | None:
    """The value with its keys as text if it is a mapping."""
    if not isinstance(value, Mapping):
        return None
    return {str(name): item for name, item in cast("Mapping[object, object]", value).items()}
