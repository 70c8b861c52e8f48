"""Command-line flags: `--a.b VALUE`, `--a.b=VALUE`, `--switch`, `--switch false`.

Dashes and underscores are the same. A text becomes a value by the type of the key that it is for.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from agentrl.config.schema import Schema, is_switch, union_members


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name as typed, the key it sets, its text (None: no value was given)."""

    name: str
    key: str
    text: str | None


Argument = str | Flag
"""A piece of a command line, or a flag that was split off one before."""


def split_flags(
    arguments: Sequence[Argument], switches: Callable[[str], bool]
) -> tuple[list[str], list[Flag]]:
    """Split arguments into positional ones and flags, in order; after `--` all are positional.

    Args:
        arguments: the command line after the command's name.
        switches: says whether a key is true or false, so that its value may be left out.
    """
    positional: list[str] = []
    flags: list[Flag] = []
    rest = list(reversed(arguments))
    while rest:
        token = rest.pop()
        if isinstance(token, Flag):
            flags.append(token)
        elif token == "--":
            return [*positional, *(str(text) for text in reversed(rest))], flags
        elif token.startswith("--"):
            name, equals, text = token.partition("=")
            key = name.removeprefix("--").replace("-", "_")
            given = text if equals else _pop_flag_value(rest, switches(key))
            flags.append(Flag(name, key, given))
        else:
            positional.append(token)
    return positional, flags


def _pop_flag_value(rest: list[Argument], switch: bool) -> str | None:
    """Take the value of a flag off what follows it; a switch needs none."""
    following = rest[-1] if rest else None
    if not isinstance(following, str) or following.startswith("--"):
        return None
    if switch and following not in ("true", "false"):
        return None
    rest.pop()
    return following


def flag_of(key: str) -> str:
    """The flag that spells a key, as it is shown to people."""
    return "--" + key.replace("_", "-")


def switches_of(schema: Schema, short: Mapping[str, str]) -> Callable[[str], bool]:
    """The `switches` of `split_flags` for a configuration and its short names."""
    long = {name.replace("-", "_"): key for name, key in short.items()}

    def switches(key: str) -> bool:
        info = schema.leaves.get(long.get(key, key))
        return info is not None and is_switch(info)

    return switches


def decode_text(text: str, info: FieldInfo) -> object:
    """The value that a text stands for at a field: itself where text is one of the values."""
    if any(_takes_text_as_it_is(member, text) for member in union_members(info.annotation)):
        return text
    for read in (int, float, _parse_toml_value):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _takes_text_as_it_is(kind: Any, text: str) -> bool:
    if get_origin(kind) is Literal:
        return text in get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return text in [member.value for member in kind]
    return kind in (str, Path)


def _parse_toml_value(text: str) -> object:
    if "\n" in text:
        raise ValueError("more than a value")
    return tomllib.loads(f"x = {text}")["x"]
