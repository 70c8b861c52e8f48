"""What a command declares, and how its arguments are taken apart."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import Field

from agentrl.config import Config, load_config
from agentrl.config.flags import Flag, split_flags, switches_of
from agentrl.config.nearest import nearest
from agentrl.config.schema import Schema, schema_of
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
        from agentrl.cli.help import render

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
    _check_argument_count(name, command, positional)
    rest = tuple(flag for flag in flags if flag not in mine)
    return options, Arguments(positional=tuple(positional), flags=rest)


def _check_argument_count(name: str, command: Verb[O], positional: Sequence[str]) -> None:
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


def check_name(name: str, known: Sequence[str], done: str) -> None:
    """Raise ConfigError for an engine that is none of those that can be `done`."""
    if name not in known:
        raise ConfigError(f"engine {name!r} cannot be {done}, {nearest(name, known)}")
