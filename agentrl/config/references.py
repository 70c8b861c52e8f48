"""References to user code: `pkg.mod:Name` and `path/file.py:Name`.

A file is loaded once, under a name made from its path that is the same in every process, so that
another process can load what is pickled by that name.
"""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from agentrl.config.anchor import is_file
from agentrl.config.nearest import nearest
from agentrl.errors import ConfigError
from agentrl.places import short_path

_PREFIX: Final = "agentrl_file_"


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
    module = load_file(Path(place), subject) if is_file(place) else _load_module(place, subject)
    return _attribute(module, qualname, subject, place)


def load_file(path: Path, subject: str) -> ModuleType:
    """The module in the file `path`, loaded at the first call; `subject` starts each message."""
    path = path.expanduser().resolve()
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ConfigError(f"{subject} cannot be imported: there is no file {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{subject} cannot be imported: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # its neighbours can be imported, as for a script
    vars(module)["__agentrl_file__"] = str(path)  # for whoever pickles what is in it
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(_import_message(subject, error, path)) from error
    _pickle_by_value(module)
    return module


def _module_name(path: Path) -> str:
    digest = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
    stem = "".join(c if c.isalnum() else "_" for c in path.stem)
    return f"{_PREFIX}{stem}_{digest}"


def _pickle_by_value(module: ModuleType) -> None:
    """Let cloudpickle, where it is in use, send the module's functions with their code."""
    cloudpickle = sys.modules.get("cloudpickle")
    if cloudpickle is not None:
        cloudpickle.register_pickle_by_value(module)


def _load_module(name: str, subject: str) -> ModuleType:
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
        raise ConfigError(_import_message(subject, error, None)) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(_import_message(subject, error, None)) from error


def _import_message(subject: str, error: BaseException, path: Path | None) -> str:
    """The last line of the traceback and the place in the user's code."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    cause = f"{type(error).__name__}: {text}".rstrip(": ")
    place = _place(error, path)
    return f"{subject} cannot be imported: {' '.join(cause.split())}" + (
        f" ({place[0]}, line {place[1]})" if place else ""
    )


def _place(error: BaseException, path: Path | None) -> tuple[str, int] | None:
    """The file and line to blame: the last frame in `path`, else the last outside importlib."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return short_path(error.filename), error.lineno
    found = None
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name == str(path) or (path is None and _is_user_code(name)):
            found = (short_path(name), traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _is_user_code(filename: str) -> bool:
    return "importlib" not in filename and filename != __file__


def _attribute(module: ModuleType, qualname: str, subject: str, place: str) -> object:
    found: object = module
    for name in qualname.split("."):
        if not hasattr(found, name):
            names = [n for n in vars(found) if not n.startswith("_")] if _has_names(found) else []
            raise ConfigError(
                f"{subject} does not exist: {place} has no {name}, {nearest(name, names)}"
            )
        found = getattr(found, name)
    return found


def _has_names(found: object) -> bool:
    return isinstance(found, ModuleType | type)
