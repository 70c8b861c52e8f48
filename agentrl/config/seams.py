"""What users bring from outside, by one resolver for every seam.

    an object ─────────────────────────────┐
    a built-in name ─▶ the seam's dict ────┤
    pkg.mod:Name, path/file.py:Name ───────┼─▶ what it stands for ─▶ checked by the seam's owner
    the name of an installed entry point ──┘

A configuration holds text. An object is written there as the reference that finds it; one that no
reference finds is written as `<its name>`, and has to be given again by whoever resumes.
"""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import cast

from agentrl.boundary import short_path, user_code
from agentrl.config.anchor import is_file
from agentrl.config.nearest import nearest
from agentrl.config.references import load_reference
from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Seam:
    """One kind of thing that can be brought from outside."""

    what: str
    """Its name in messages, such as "estimator"."""
    built_in: Mapping[str, object]
    """By name: an object, or the reference of one whose import takes long."""
    group: str
    """The entry point group of installed ones."""

    def find(self, ref: object) -> object:
        """What a reference stands for; an object stands for itself.

        Raises:
            ConfigError: there is none.
        """
        if not isinstance(ref, str):
            return ref
        if ref.startswith("<"):  # the text of an object that no reference finds
            raise ConfigError(
                f"{self.what} {ref} was an object in Python that no reference finds: give it again "
                "as an argument in Python, or write it into a file and name path/file.py:Name"
            )
        if ":" in ref:
            return load_reference(ref, self.what)
        found = self.built_in.get(ref)
        if found is not None:
            return load_reference(found, self.what) if isinstance(found, str) else found
        installed = {entry.name: entry for entry in entry_points(group=self.group)}
        if ref in installed:
            entry = installed[ref]
            return load_reference(f"{entry.module}:{entry.attr}", f"{self.what} {ref} =")
        raise ConfigError(
            f"{self.what} {ref or repr(ref)} is unknown (your own is written pkg.mod:Name or "
            f"path/file.py:Name), {nearest(ref, (*self.built_in, *installed))}"
        )

    def label(self, ref: object) -> str:
        """How messages name what a reference stands for."""
        if not isinstance(ref, str):
            return f"{self.what} {getattr(ref, '__name__', type(ref).__name__)}"
        place, _, name = ref.rpartition(":")
        return f"{self.what} {short_path(place)}:{name}" if is_file(place) else f"{self.what} {ref}"


def reference_of(found: object) -> str:
    """The reference that finds an object; `<its name>` if none does."""
    name: object = getattr(found, "__qualname__", None)
    label = name if isinstance(name, str) else type(found).__qualname__
    module = sys.modules.get(str(getattr(found, "__module__", "")))
    at: object = module
    for part in label.split("."):
        at = getattr(at, part, None)
    if at is not found or module is None or module.__name__ == "__main__":
        return f"<{label.rpartition('.')[2].strip('<>')}>"
    file = vars(module).get("__agentrl_file__")
    return f"{file[0] if file else module.__name__}:{label}"


def instance_of(found: object, label: str) -> object:
    """What was found; of a class an instance, made without arguments.

    Raises:
        ConfigError: the class needs arguments.
    """
    if not isinstance(found, type):
        return found
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ConfigError(
            f"{label} is a class that needs arguments ({error}); give an instance instead"
        ) from error
    except ValueError:
        pass  # a class without a readable signature: try it
    with user_code(f"making {label}", fault=ConfigError):
        return cast("type[object]", found)()


def check_function(found: object, label: str, *names: str, keywords: tuple[str, ...] = ()) -> None:
    """Refuse what cannot be called with arguments of these names, or gives its result later.

    Raises:
        ConfigError: it is no function, is async, or takes other arguments.
    """
    wanted = ", ".join((*names, *(["*"] if keywords else []), *keywords))
    if not callable(found):
        raise ConfigError(f"{label} is of type {type(found).__name__}, expected f({wanted})")
    if inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(type(found).__call__):
        raise ConfigError(f"{label} is async; write it as a plain function ({wanted})")
    try:
        signature = inspect.signature(found)
    except ValueError:
        return  # some builtins have none
    try:
        signature.bind(*names, **dict.fromkeys(keywords))
    except TypeError as error:
        raise ConfigError(f"{label} takes {signature}, expected ({wanted})") from error
