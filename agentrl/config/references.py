"""References to user code: `pkg.mod:Name` and `path/file.py:Name`."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from agentrl.boundary import short_path
from agentrl.config.anchor import is_file
from agentrl.config.nearest import nearest
from agentrl.config.source_files import import_message, load_file
from agentrl.errors import ConfigError
from agentrl.terminated import Terminated


def load_reference(ref: str, what: str) -> object:
    """The object that `ref` names; `what` ("environment", "verifier") starts each message.

    Raises:
        ConfigError: the reference is malformed, its module cannot be imported, or the name is not
            in it.
    """
    place, _, qualname = ref.rpartition(":")
    if not place or not qualname:
        raise ConfigError(
            f"{what} {ref!r} is not a reference: expected pkg.mod:Name or path/file.py:Name"
        )
    subject = f"{what} {short_path(place) if is_file(place) else place}:{qualname}"
    module = load_file(Path(place), subject) if is_file(place) else _import_module(place, subject)
    found: object = module
    for name in qualname.split("."):
        if not hasattr(found, name):
            there = vars(found) if isinstance(found, ModuleType | type) else {}
            names = [n for n in there if not n.startswith("_")]
            raise ConfigError(
                f"{subject} does not exist: {place} has no {name}, {nearest(name, names)}"
            )
        found = getattr(found, name)
    return found


def _import_module(name: str, subject: str) -> ModuleType:
    """Import `name`; the current directory counts as importable, as with `python -m`, but last."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{subject} cannot be imported: no module {error.name} was found, neither "
                f"installed nor in {here}"
            ) from error
        raise ConfigError(import_message(subject, error, None)) from error
    except Terminated:
        raise  # a signal that came meanwhile
    except (Exception, SystemExit) as error:
        raise ConfigError(import_message(subject, error, None)) from error
