"""One configuration from defaults, a TOML file and flags, with the origin of every value."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from agentrl.config.base import Config
from agentrl.config.draft import DEFAULT, Draft, ParametersOf
from agentrl.config.flags import is_switch, split_flags
from agentrl.errors import ConfigError

C = TypeVar("C", bound=Config)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[C]):
    """A checked configuration and where each of its values came from.

    `origins` maps every dotted leaf key (`trainer.lr`, `env.0.name`) to "default", a file, a flag
    as it was typed, or the name of a set of defaults.
    """

    config: C
    origins: Mapping[str, str]

    def where(self, key: str) -> str:
        """How a message should name a key: its flag, or its origin and name."""
        origin = self.origins.get(key, DEFAULT)
        if origin == DEFAULT:
            return key
        return origin if origin.startswith("--") else f"{origin}: {key}"


def load_config(
    cls: type[C],
    *,
    file: Path | None = None,
    flags: Sequence[str] = (),
    short: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
    defaults_origin: str = "preset",
    keywords: Mapping[str, object] | None = None,
    parameters: Mapping[str, ParametersOf] | None = None,
) -> Loaded[C]:
    """Load and check a configuration; later layers win: defaults, file, keywords, flags.

    Args:
        cls: the class of the whole tree.
        file: a TOML file.
        flags: command-line arguments such as `["--trainer.lr", "1e-3"]`, nothing else.
        short: short flag names without dashes, each with its dotted key.
        defaults: dotted keys with values that take the place of the classes' own defaults.
        defaults_origin: the origin of `defaults`.
        keywords: dotted keys with values that a caller in Python gave.
        parameters: for a list of tables whose rows have parameters of their own, the function from
            a row's name to the class of its parameters. The rows then hold all their parameters,
            checked and with defaults; without it they hold what was given, unchecked.

    Paths become absolute: those of the file are relative to it, others to the working folder.

    Raises:
        ConfigError: one line for each thing that is wrong.
    """
    names = {name.replace("-", "_"): key for name, key in (short or {}).items()}
    folders = {} if file is None else {str(file): file.absolute().parent}
    draft = Draft(cls, short=names, parameters=parameters or {}, folders=folders)
    for key, value in (defaults or {}).items():
        draft.add_mapping(_nest(key, value), defaults_origin)
    if file is not None:
        draft.add_mapping(read_toml(file), str(file))
    for key, value in (keywords or {}).items():
        draft.add_mapping(_nest(key, value), "keyword")
    positional, read = split_flags(flags, is_switch(draft.schema, names))
    draft.problems += [f'got the argument "{text}", expected flags only' for text in positional]
    draft.add_flags(read)
    return _finished(draft)


def parse_params(
    cls: type[C],
    params: Mapping[str, object],
    where: str,
    origins: Mapping[str, str] | None = None,
) -> C:
    """Check the parameters of an environment (or of anything named in a table) by their class.

    Args:
        cls: the class of the parameters.
        params: names and values.
        where: the dotted key that messages put before a parameter's name, such as "env".
        origins: the origin of each parameter, where known.

    Raises:
        ConfigError: one line for each thing that is wrong.
    """
    draft = Draft(cls, f"{where}." if where else "")
    for name, value in params.items():
        draft.add_mapping({name: value}, (origins or {}).get(name, ""))
    return _finished(draft).config


def read_toml(path: Path) -> dict[str, object]:
    """Read a TOML file.

    Raises:
        ConfigError: it cannot be read or is not TOML; names the line.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file, expected a TOML file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 at byte {error.start}, expected TOML") from error
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).rstrip(")").partition(" (at ")
        raise ConfigError(f"{path}: {place or 'somewhere'}: is not TOML: {what}") from error


def _finished(draft: Draft[C]) -> Loaded[C]:
    checked = draft.check()
    if checked is None:
        raise ConfigError("\n".join(dict.fromkeys(draft.problems)))
    return Loaded(checked.config, checked.origins)


def _nest(key: str, value: object) -> dict[str, object]:
    first, _, rest = key.partition(".")
    return {first: _nest(rest, value) if rest else value}
