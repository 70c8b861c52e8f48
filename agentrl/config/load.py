"""One configuration from defaults, a TOML file, keywords and flags, with every value's origin.

defaults ─┐
run.toml ─┼─▶ {key: (value, origin)} ──check──▶ Loaded(config, origins)
flags ────┘   a later layer wins               or problems, one line each
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import TypeVar

from agentrl.config.draft import Draft, Loaded, ParametersOf, Value
from agentrl.config.flags import Argument, split_flags, switches_of
from agentrl.config.schema import Config
from agentrl.errors import ConfigError

C = TypeVar("C", bound=Config)
Preset = Callable[[Mapping[str, Value]], Sequence[tuple[Mapping[str, object], str, Set[str]]]]
"""From what was given, by dotted key, to further defaults with their origins; earlier ones win.

The set has the keys whose given values give way to them.
"""


def load_config(
    cls: type[C],
    *,
    file: Path | None = None,
    flags: Sequence[Argument] = (),
    short: Mapping[str, str] | None = None,
    preset: Preset | None = None,
    keywords: Mapping[str, object] | None = None,
    parameters: Mapping[str, ParametersOf] | None = None,
) -> Loaded[C]:
    """Load and check a configuration; later layers win: defaults, preset, file, keywords, flags.

    Args:
        cls: the class of the whole tree.
        file: a TOML file.
        flags: command-line arguments such as `["--trainer.lr", "1e-3"]`, nothing else.
        short: short flag names without dashes, each with its dotted key.
        preset: gives defaults that take the place of the classes' own.
        keywords: dotted keys with values that a caller in Python gave.
        parameters: for a list of tables whose rows have parameters of their own, the function from
            a row's name to the class of its parameters. The rows then hold all their parameters,
            checked and with defaults.

    Paths become absolute: those of the file are relative to it, others to the working folder.

    Raises:
        ConfigError: one line for each thing that is wrong.
    """
    draft = Draft(
        cls,
        short={name.replace("-", "_"): key for name, key in (short or {}).items()},
        parameters=parameters or {},
        folders={} if file is None else {str(file): file.absolute().parent},
    )
    if file is not None:
        draft.lay(read_toml(file), str(file))
    draft.lay(keywords or {}, "keyword")
    positional, read = split_flags(flags, switches_of(draft.schema, draft.short))
    draft.problems += [f'got the argument "{text}", expected flags only' for text in positional]
    draft.lay_flags(read)
    if preset is not None:
        for values, origin, over in preset(draft.given):
            draft.lay_under(values, origin, over)
    return draft.check()


def parse_params(cls: type[C], params: Mapping[str, object], where: str) -> C:
    """Check the parameters of an environment (or of anything named in a table) by their class.

    Args:
        cls: the class of the parameters.
        params: names and values.
        where: the dotted key that messages put before a parameter's name, such as "env".

    Raises:
        ConfigError: one line for each thing that is wrong.
    """
    draft = Draft(cls, prefix=f"{where}." if where else "")
    draft.lay(params, "")
    return draft.check().config


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
