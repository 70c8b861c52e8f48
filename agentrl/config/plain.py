"""Plain data (what TOML holds) as JSON, so that pydantic checks it in its strict JSON mode.

Strict JSON is exactly what a configuration file needs: text is no number and `true` is no integer,
while an array may be a tuple and a text an enum or a path.
"""

import datetime as dt
import json
from enum import Enum
from pathlib import PurePath


def to_json(value: object) -> bytes:
    """The JSON text of plain data.

    Raises:
        TypeError: the value holds an object that is not data.
    """
    return json.dumps(value, default=_plain).encode()


def _plain(value: object) -> object:
    match value:
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case Enum():
            return value.value
        case PurePath():
            return str(value)
        case set() | frozenset():
            return list(value)
        case _:
            raise TypeError(f"got {type(value).__name__}, expected plain data")
