"""What a field accepts, in words: for `--help`, and for what pydantic refuses."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Literal, get_args, get_origin

import annotated_types as at
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentrl.config.nearest import nearest
from agentrl.config.schema import union_members

_PLACEHOLDERS: Mapping[object, str] = {
    bool: "BOOL",
    int: "INT",
    float: "NUMBER",
    str: "TEXT",
    Path: "PATH",
    type(None): "none",
    dict: "TABLE",
    Mapping: "TABLE",
}
_BOUNDS = (
    (at.Ge, "ge", "at least {}"),
    (at.Gt, "gt", "above {}"),
    (at.Le, "le", "at most {}"),
    (at.Lt, "lt", "below {}"),
)
_EXPECTED: Mapping[str, str] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "missing": "a value",
    "greater_than_equal": "a number of at least {ge}",
    "greater_than": "a number above {gt}",
    "less_than_equal": "a number of at most {le}",
    "less_than": "a number below {lt}",
}
"""What pydantic wants, in the words of a TOML file; of other kinds its own sentence is good."""


def placeholder(info: FieldInfo) -> str:
    """The accepted values as one word for `--help`, such as "INT" or "a|b"."""
    words: list[str] = []
    for member in union_members(info.annotation):
        kind: object = get_origin(member) or member
        if kind is Literal:
            words += [str(arg) for arg in get_args(member)]
        elif isinstance(member, type) and issubclass(member, Enum):
            words += [str(item.value) for item in member]
        else:
            words.append(_PLACEHOLDERS.get(kind, "LIST"))
    return "|".join(dict.fromkeys(words))


def describe_bounds(info: FieldInfo) -> str:
    """The limits of a field, such as "at least 1"; empty where there are none."""
    return " and ".join(
        text.format(getattr(item, name))
        for kind, name, text in _BOUNDS
        for item in info.metadata
        if isinstance(item, kind)
    )


def shown(value: object) -> str:
    """A value that was got, cut to a readable length; text in quotes unless it is a number."""
    if isinstance(value, str):
        text = value if _is_number_text(value) else f'"{value}"'
    else:
        text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _is_number_text(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def describe_expected(error: ErrorDetails) -> str:
    """What pydantic wanted, such as "a number of at least 1"."""
    limits = {
        name: int(limit) if isinstance(limit, float) and limit.is_integer() else limit
        for name, limit in error.get("ctx", {}).items()
    }
    words = _EXPECTED.get(error["type"], "").format(**limits)
    words = words or error["msg"].removeprefix("Input should be ")
    choices = re.findall(r"'([^']*)'", words) if error["type"] == "literal_error" else []
    hint = nearest(str(error["input"]), choices)
    return f"{words} ({hint})" if hint.startswith("did you mean") else words


def explain_refusal(errors: Iterable[ErrorDetails], depth: int, got: object) -> str:
    """Why pydantic refused one value, in one sentence.

    Args:
        errors: its records of the value: several for a union, or for what is in a list.
        depth: how many parts of a location are the value's key.
        got: the value.
    """
    wanted: list[str] = []
    for error in errors:
        if error["type"] in ("value_error", "assertion_error"):
            return str(error.get("ctx", {}).get("error", error["msg"]))
        inner = [part for part in error["loc"][depth:] if isinstance(part, int)]
        wanted.append(describe_expected(error) + "".join(f" at item {index}" for index in inner))
    return f"got {shown(got)}, expected {' or '.join(dict.fromkeys(wanted))}"
