"""Python files of users as modules: one for each content that a file has had.

    env.py, its path and content ─▶ agentrl_file_env_1f...   imports rules.py, its neighbour
    env.py, changed              ─▶ agentrl_file_env_9c...

What was loaded stays what it was, and a load after a change gives another module: in a notebook the
next job goes by what is on disk. The name is the same in every process, so that another process can
load what is pickled by it.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from agentrl.boundary import said_by, short_path
from agentrl.errors import ConfigError
from agentrl.terminated import Terminated

_PREFIX: Final = "agentrl_file_"
_NEIGHBOURS: Final = "__agentrl_neighbours__"
_neighbours: Final[dict[str, tuple[Path, bytes]]] = {}
"""Modules that loaded files have imported from beside them: the file, and what it was then."""


def load_file(path: Path, subject: str) -> ModuleType:
    """The module of what is in the file `path` now; `subject` starts each message.

    Raises:
        ConfigError: there is no such file, or it cannot be imported.
    """
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{subject} cannot be imported: there is no file {path}")
    if path.suffix != ".py":
        raise ConfigError(f"{subject} cannot be imported: {path} is not a Python file")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(import_message(subject, error, path)) from error
    _unload_modules_if_folder_changed(path.parent)
    return load_source(path, source, subject)


def load_source(path: Path, source: bytes, subject: str) -> ModuleType:
    """The module of the file `path` when it held `source`, loaded at the first call.

    Raises:
        ConfigError: it cannot be imported.
    """
    digest = hashlib.blake2b(str(path).encode() + b"\0" + source, digest_size=6).hexdigest()
    name = f"{_PREFIX}{''.join(c if c.isalnum() else '_' for c in path.stem)}_{digest}"
    module = sys.modules.get(name)
    if module is not None:
        known: dict[str, ModuleType] = vars(module).get(_NEIGHBOURS, {})
        if all(sys.modules.get(other) is neighbour for other, neighbour in known.items()):
            return module
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # as for every .py
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # its neighbours can be imported, as for a script
    # For whoever pickles what is in it.
    vars(module).update({"__agentrl_file__": (str(path), source), _NEIGHBOURS: {}})
    before = set(sys.modules)
    sys.modules[name] = module
    loaded = False
    try:
        # Not by its loader, which may take bytecode of another version from the same second.
        exec(compile(source, str(path), "exec"), vars(module))
        loaded = True
    except Terminated:
        raise  # a signal that came meanwhile
    except (Exception, SystemExit) as error:
        raise ConfigError(import_message(subject, error, path)) from error
    finally:
        vars(module)[_NEIGHBOURS] = _note_new_modules_of_folder(before, path.parent)
        if not loaded:
            del sys.modules[name]
    if cloudpickle := sys.modules.get("cloudpickle"):  # let it send functions with their code
        cloudpickle.register_pickle_by_value(module)
    return module


def _note_new_modules_of_folder(before: set[str], folder: Path) -> dict[str, ModuleType]:
    """Remember which modules in `folder` are new since `before`; all that are known there."""
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        ours = name.partition(".")[0] == "agentrl" or name.startswith(_PREFIX)
        written = file.suffix == ".py" and "site-packages" not in file.parts
        if name not in before and written and not ours and file.is_relative_to(folder):
            _neighbours[name] = (file, _read_bytes_or_empty(file))
    return {
        name: sys.modules[name]
        for name, (file, _) in _neighbours.items()
        if file.is_relative_to(folder) and name in sys.modules
    }


def _unload_modules_if_folder_changed(folder: Path) -> None:
    """If one has changed, let all be imported again: they may import each other."""
    importlib.invalidate_caches()
    known = {n: found for n, found in _neighbours.items() if found[0].is_relative_to(folder)}
    if all(_read_bytes_or_empty(file) == source for file, source in known.values()):
        return
    for name, (file, _) in known.items():
        sys.modules.pop(name, None)
        del _neighbours[name]
        with contextlib.suppress(OSError):  # it tells versions of one second apart by size alone
            Path(importlib.util.cache_from_source(str(file))).unlink()


def _read_bytes_or_empty(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def import_message(subject: str, error: BaseException, path: Path | None) -> str:
    """The last line of the traceback and the place in the user's code."""
    text = error.msg if isinstance(error, SyntaxError) else said_by(error)
    cause = f"{type(error).__name__}: {text}".rstrip(": ")
    place = _find_line_to_blame(error, path)
    return f"{subject} cannot be imported: {' '.join(cause.split())}" + (
        f" ({place[0]}, line {place[1]})" if place else ""
    )


def _find_line_to_blame(error: BaseException, path: Path | None) -> tuple[str, int] | None:
    """The file and line to blame: the last frame in `path`, else the last outside importlib."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return short_path(error.filename), error.lineno
    found = None
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        outside = "importlib" not in name and Path(name).parent != Path(__file__).parent
        if name == str(path) or (path is None and outside):
            found = (short_path(name), traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
