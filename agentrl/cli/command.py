"""What a command declares, how its arguments are taken apart, and the text of its `--help`."""

import json
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import Field
from pydantic.fields import FieldInfo

from agentrl.config import Config, load_config
from agentrl.config.describe import describe_bounds, placeholder
from agentrl.config.dump import toml_value
from agentrl.config.flags import Flag, flag_of, split_flags, switches_of
from agentrl.config.nearest import nearest
from agentrl.config.plain import plain
from agentrl.config.schema import Schema, is_switch, schema_of
from agentrl.errors import ConfigError

O = TypeVar("O", bound=Config)  # noqa: E741  # a command's options


class JsonOption(Config):
    """The options of a command that prints data."""

    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def show(self, data: object, text: str) -> None:
        """Print data for programs, or the same as a text for people."""
        if self.as_json:
            text = json.dumps(data, indent=2, ensure_ascii=False, default=str)
        print(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What is left of a command line when the command's own options are taken out."""

    positional: tuple[str, ...]
    flags: tuple[Flag, ...]
    """Flags of the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb(Generic[O]):
    """One command: its options, what else it takes, and the function that does it.

    `config` is the configuration whose keys are flags of the command too; `short` are their short
    names. `takes` names the positional arguments; a name in brackets may be left out, and one that
    ends in dots stands for any number.
    """

    summary: str
    examples: Sequence[str]
    options: type[O]
    run: Callable[[O, Arguments], int]
    takes: Sequence[str] = ()
    config: type[Config] | None = None
    short: Mapping[str, str] = field(default_factory=dict[str, str])


def invoke(name: str, command: Verb[O], argv: Sequence[str]) -> int:
    """Run a command, called so, with the arguments after its name.

    Raises:
        ConfigError: an argument is wrong.
    """
    before = argv[: list(argv).index("--")] if "--" in argv else argv
    if "--help" in before or "-h" in before:
        print(render(name, command))
        return 0
    options, arguments = parse(name, command, argv)
    return command.run(options, arguments)


def parse(name: str, command: Verb[O], argv: Sequence[str]) -> tuple[O, Arguments]:
    """Split arguments into the command's own options and the rest.

    Raises:
        ConfigError: an option is wrong, or there are too few or too many positional arguments.
    """
    known, own = Schema(), schema_of(command.options).leaves
    if command.config is not None:
        known.add(command.config)
    known.add(command.options)
    positional, flags = split_flags(argv, switches_of(known, command.short))
    mine = [flag for flag in flags if command.config is None or flag.key in own]
    options = load_config(command.options, flags=mine).config
    needed = [taken for taken in command.takes if not taken.startswith("[")]
    if len(positional) < len(needed):
        raise ConfigError(
            f"{name}: got no {needed[len(positional)]}, expected one;"
            f" for example: {command.examples[0]}"
        )
    any_number = bool(command.takes) and command.takes[-1].rstrip("]").endswith("...")
    if len(positional) > len(command.takes) and not any_number:
        extra = positional[len(command.takes)]
        wanted = " ".join(command.takes) or "none"
        raise ConfigError(f'{name}: got the argument "{extra}", expected {wanted}')
    rest = tuple(flag for flag in flags if flag not in mine)
    return options, Arguments(positional=tuple(positional), flags=rest)


def check_name(name: str, known: Sequence[str], done: str) -> None:
    """Raise ConfigError for an engine that is none of those that can be `done`."""
    if name not in known:
        raise ConfigError(f"engine {name!r} cannot be {done}, {nearest(name, known)}")


_INDENT = 30


def render(name: str, command: Verb[Any]) -> str:
    """Usage, examples, then every flag: the command's own, the short names, all keys."""
    flags = " [--KEY VALUE ...]" if command.config else ""
    takes = "".join(f" {taken}" for taken in command.takes)
    lines = [f"usage: agentrl {name}{takes}{flags}", "", command.summary]
    lines += ["", "examples:", *(f"  {example}" for example in command.examples)]
    lines += ["", "options:", *_describe_keys_without_short_flag(schema_of(command.options), {})]
    lines += _wrap_help_entry("--help", "Show this.")
    if command.config is not None:
        schema = schema_of(command.config)
        if command.short:
            lines += ["", "common keys:", *_describe_short_flags(schema, command.short)]
        lines += ["", "all keys (in a file as [section] and key):"]
        lines += _describe_keys_without_short_flag(schema, command.short)
    return "\n".join(lines)


def _describe_short_flags(schema: Schema, short: Mapping[str, str]) -> Iterator[str]:
    for name, key in short.items():
        if key in schema.tables:
            yield from _wrap_help_entry(
                f"--{name} NAME", f"One [[{key}]] table; its keys are --{key}.KEY."
            )
            continue
        if key not in schema.leaves:
            yield from _wrap_help_entry(f"--{name} VALUE", f"Short for {flag_of(key)}.")
            continue
        alias = "" if key == name.replace("-", "_") else f"Short for {flag_of(key)}. "
        yield from _wrap_help_entry(
            _name_flag_with_value(f"--{name}", schema.leaves[key]),
            alias + _describe_config_field(schema.leaves[key]),
        )


def _describe_keys_without_short_flag(schema: Schema, short: Mapping[str, str]) -> Iterator[str]:
    """Every key that is not already shown under the same name."""
    shown = {key for name, key in short.items() if key == name.replace("-", "_")}
    for key, leaf in schema.leaves.items():
        if key not in shown:
            yield from _wrap_help_entry(
                _name_flag_with_value(flag_of(key), leaf), _describe_config_field(leaf)
            )
    for key, table in schema.tables.items():
        for name, leaf in schema_of(table).leaves.items():
            if name != "name":
                yield from _wrap_help_entry(
                    _name_flag_with_value(flag_of(f"{key}.{name}"), leaf),
                    _describe_config_field(leaf),
                )
        if table.model_config.get("extra") == "allow":
            yield from _wrap_help_entry(f"--{key}.KEY VALUE", f"A parameter of the {key} itself.")


def _name_flag_with_value(name: str, field: FieldInfo) -> str:
    return name if is_switch(field) else f"{name} {placeholder(field)}"


def _describe_config_field(field: FieldInfo) -> str:
    facts = [describe_bounds(field)]
    if field.is_required():
        facts.append("required")
    else:
        default = toml_value(plain(field.get_default(call_default_factory=True))).strip('"')
        facts += [f"default {default}"] * (default not in ("none", "false", "", "[]", "{}"))
    listed = "; ".join(fact for fact in facts if fact)
    text = (field.description or "").rstrip(".")
    described = f"{text}." if text else ""
    return f"{described} {f'({listed})' if listed else ''}".strip()


def _wrap_help_entry(flag: str, text: str) -> list[str]:
    """One flag with its description beside it, or below it where the flag is long."""
    width = max(shutil.get_terminal_size((100, 24)).columns, 60)
    body = textwrap.wrap(text, width - _INDENT) or [""]
    head = f"  {flag}"
    if len(head) > _INDENT - 2:
        return [head, *(" " * _INDENT + line for line in body)]
    first, *rest = body
    return [f"{head:{_INDENT}}{first}".rstrip(), *(" " * _INDENT + line for line in rest)]
