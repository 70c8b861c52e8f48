"""Plain data (what TOML holds) as JSON, so that pydantic checks it in its strict JSON mode.

Strict JSON is exactly what a configuration file needs: text is no number and `true` is no integer,
while an array may be a tuple and a text an enum or a path.
"""

import datetime as dt
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import cast


def to_json(value: object) -> bytes:
    """The JSON text of plain data.

    Raises:
        TypeError: the value holds an object that is not data.
    """
    return json.dumps(value, default=plain).encode()


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
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
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
