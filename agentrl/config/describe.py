"""What a field accepts, in words: for error messages and for `--help`."""

import json
import math
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as at
from pydantic.fields import FieldInfo

_NAMES: Mapping[object, tuple[str, str]] = {
    bool: ("true or false", "BOOL"),
    int: ("an integer", "INT"),
    float: ("a number", "NUMBER"),
    str: ("text", "TEXT"),
    Path: ("a path", "PATH"),
    type(None): ("none", "none"),
}
_UNIONS = (Union, types.UnionType)


def expected(field: FieldInfo, got: object = None) -> str:
    """The accepted values as a phrase, such as "an integer of at least 1"."""
    phrase = _phrase(field.annotation, field.metadata)
    number = _number_of(got)
    finite = number is None or math.isfinite(number)
    return phrase if finite else phrase.replace("a number", "a finite number")


def placeholder(field: FieldInfo) -> str:
    """The accepted values as one word for `--help`, such as "INT" or "a|b"."""
    return _name_type(field.annotation)


def bounds(field: FieldInfo) -> str:
    """The limits of a field alone, such as "at least 1"; empty where there are none."""
    phrase = expected(field).removesuffix(" or none")
    plain = _phrase(field.annotation, ()).removesuffix(" or none")
    return phrase.removeprefix(plain).removeprefix(" of").strip() if phrase != plain else ""


def accepts_none(annotation: Any) -> bool:
    """True if None is one of the values."""
    return any(member is type(None) for member in members(annotation))


def accepts_only_bool(annotation: Any) -> bool:
    """True for a switch: on the command line its value may be left out."""
    return {member for member in members(annotation) if member is not type(None)} == {bool}


def members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone; metadata is taken off."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in _UNIONS:
        return tuple(m for arg in get_args(annotation) for m in members(arg))
    return (annotation,)


def shown(value: object) -> str:
    """A value that was got, cut to a readable length; text in quotes unless it is a number."""
    if isinstance(value, str):
        text = f'"{value}"' if _number_of(value) is None else value
    else:
        text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _number_of(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _phrase(annotation: Any, metadata: Iterable[Any]) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _phrase(args[0], [*_flatten_metadata(args[1:]), *metadata])
    if origin in _UNIONS:
        return _alternatives([_phrase(arg, metadata) for arg in args])
    if origin is Literal:
        return _alternatives([shown(arg) for arg in args])
    if _is_a(annotation, Enum):
        return _alternatives([shown(member.value) for member in annotation])
    if annotation in (int, float, str):
        return _NAMES[annotation][0] + _limits(metadata)
    return _container(origin or annotation, args, metadata)


def _container(kind: Any, args: tuple[Any, ...], metadata: Iterable[Any]) -> str:
    if kind in _NAMES:
        return _NAMES[kind][0]
    if _is_a(kind, Mapping):
        return "a table of names and values"
    if kind is tuple and args and args[-1] is not Ellipsis:
        return f"a list of {len(args)} values"
    if _is_a(kind, Collection):
        item = f", each item {_phrase(args[0], ())}" if args else ""
        return f"a list{_limits(metadata, 'items')}{item}"
    return getattr(kind, "__name__", "a value")


def _is_a(kind: object, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _alternatives(phrases: Sequence[str]) -> str:
    *first, last = dict.fromkeys(phrases)
    return f"{', '.join(first)} or {last}" if first else last


def _flatten_metadata(metadata: Iterable[Any]) -> list[Any]:
    out: list[Any] = []
    for item in metadata:
        out.extend(item.metadata if isinstance(item, FieldInfo) else [item])
    return out


def _limits(metadata: Iterable[Any], unit: str = "characters") -> str:
    low: list[str] = []
    high: list[str] = []
    for item in _flatten_metadata(metadata):
        match item:
            case at.Ge(ge=x):
                low.append(f"of at least {x}")
            case at.Gt(gt=x):
                low.append(f"above {x}")
            case at.Le(le=x):
                high.append(f"at most {x}")
            case at.Lt(lt=x):
                high.append(f"below {x}")
            case at.MinLen(min_length=n):
                low.append(f"of at least {n} {unit}")
            case at.MaxLen(max_length=n):
                high.append(f"at most {n} {unit}")
            case _:
                pass
    if high and not low:
        high[0] = high[0].replace("at most", "of at most")
    return " " + " and ".join((*low, *high)) if low or high else ""


def _name_type(annotation: Any) -> str:
    words: list[str] = []
    for member in members(annotation):
        if get_origin(member) is Literal:
            words += [str(arg) for arg in get_args(member)]
        elif _is_a(member, Enum):
            words += [str(item.value) for item in member]
        else:
            kind: Any = get_origin(member) or member
            fallback = "TABLE" if _is_a(kind, Mapping) else "LIST"
            words.append(_NAMES[kind][1] if kind in _NAMES else fallback)
    return "|".join(dict.fromkeys(words))
