"""Command-line flags: `--a.b VALUE`, `--a.b=VALUE`, `--switch`, `--switch false`.

Dashes and underscores are the same. A text becomes a value by the type of the key that it is for.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from agentrl.config.describe import accepts_only_bool
from agentrl.config.plain import to_json
from agentrl.config.schema import Schema
from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name as typed, the key it sets, its text (None: no value was given)."""

    name: str
    key: str
    text: str | None


def split_flags(
    arguments: Sequence[str], switches: Callable[[str], bool]
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
        if token == "--":
            return positional + rest[::-1], flags
        if not token.startswith("--"):
            positional.append(token)
            continue
        name, equals, text = token.partition("=")
        key = key_of(name)
        if equals:
            flags.append(Flag(name, key, text))
        elif rest and _is_value(rest[-1], switches(key)):
            flags.append(Flag(name, key, rest.pop()))
        else:
            flags.append(Flag(name, key, None))
    return positional, flags


def key_of(name: str) -> str:
    """The key that a flag's name spells."""
    return name.removeprefix("--").replace("-", "_")


def flag_of(key: str) -> str:
    """The flag that spells a key, as it is shown to people."""
    return "--" + key.replace("_", "-")


def is_switch(schema: Schema, short: Mapping[str, str]) -> Callable[[str], bool]:
    """The `switches` of `split_flags` for a configuration class and its short names."""
    long = {key_of(name): key for name, key in short.items()}

    def switches(key: str) -> bool:
        field = schema.leaves.get(long.get(key, key))
        return field is not None and accepts_only_bool(field.annotation)

    return switches


def value_of(text: str, field: FieldInfo) -> object:
    """The value that a text stands for at a field, or the text where it fits no reading."""
    return next((value for value in _readings(text) if fits(value, field)), text)


def fits(value: object, field: FieldInfo) -> bool:
    """True if plain data is a value of the field; what is no plain data is left to pydantic."""
    try:
        text = to_json(value)
    except TypeError:
        return True
    try:
        _adapter(field).validate_json(text, strict=True)
    except ValidationError:
        return False
    return True


def guess(text: str) -> object:
    """The value of a text where no type is known: a TOML value, else the text."""
    try:
        return tomllib.loads(f"x = {text}")["x"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        return text


def check_text(flag: Flag) -> None:
    """Refuse text that is not valid Unicode.

    Raises:
        ConfigError: the text holds bytes that are not UTF-8.
    """
    try:
        (flag.text or "").encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{flag.name}: got bytes that are not UTF-8, expected text") from error


def _is_value(token: str, switch: bool) -> bool:
    return token in ("true", "false") if switch else not token.startswith("--")


def _readings(text: str) -> Iterator[object]:
    yield text
    for read in (int, float):
        try:
            yield read(text)
        except ValueError:
            continue
    yield guess(text)


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    annotation: Any = field.annotation
    for item in field.metadata:
        annotation = Annotated[annotation, item]
    return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))
