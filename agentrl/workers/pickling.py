"""How calls and results travel: by reference where the other process can import, else by value."""

# cloudpickle has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import importlib.machinery
import io
import pickle
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import cloudpickle  # type: ignore[import-untyped]  # has no type information

CANNOT_PICKLE: Final = (
    pickle.PicklingError,
    TypeError,
    AttributeError,
    ValueError,
    RuntimeError,
)
"""What pickling raises for objects that cannot travel (RecursionError is a RuntimeError)."""


def dumps(value: object) -> bytes:
    """`value` as bytes that `pickle.loads` understands in a fresh process.

    Raises:
        Exception: one of CANNOT_PICKLE.
    """
    with io.BytesIO() as buffer:
        _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped base
    """cloudpickle with two rules of ours.

    What a module loaded by `load_file` holds is named by its file and what that held, which the
    other process loads once; what only this process could import goes by value.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType | type):
            module = sys.modules.get(obj.__module__)
            file = getattr(module, "__agentrl_file__", None)
            if file is not None and _is_reachable_by_qualified_name(obj):
                return attribute_of_file, (*file, obj.__qualname__)
            known = obj.__module__ == "__main__" or is_importable(obj.__module__)
            if isinstance(module, ModuleType) and not known:
                cloudpickle.register_pickle_by_value(module)
        return super().reducer_override(obj)


def attribute_of_file(path: str, source: bytes, qualname: str) -> object:
    """What `qualname` is in the file `path` as it was, which is loaded if it is not yet."""
    # Imported here because it brings pydantic, which few workers need.
    from agentrl.config.source_files import load_source

    found: object = load_source(Path(path), source, f"{path}:{qualname}")
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def _is_reachable_by_qualified_name(obj: Callable[..., object]) -> bool:
    """True if the object's module has it under its qualified name (lambdas and closures: no)."""
    found: object = sys.modules[obj.__module__]
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


@lru_cache(maxsize=4096)
def is_importable(name: str) -> bool:
    """True if a fresh process would find the same module under this name."""
    module = sys.modules.get(name)
    if module is None:
        return False
    origin = getattr(module, "__file__", None)
    if origin is None:
        return True
    path: list[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        spec = _find_module_spec(".".join(parts[:end]), path)
        if spec is None:
            return False
        path = list(spec.submodule_search_locations or ())
    if spec is None or spec.origin is None:
        return False
    return spec.origin == origin or Path(spec.origin).resolve() == Path(origin).resolve()


def _find_module_spec(name: str, path: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """What the import system finds, without looking at what is loaded already."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None
