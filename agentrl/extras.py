"""Packages that agentrl does not need for everything, and the extra that each comes with."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from agentrl.errors import ConfigError

TRAIN: Final = ("torch", "transformers", "safetensors", "peft")
_EXTRA: Final[Mapping[str, str]] = {
    **dict.fromkeys((*TRAIN, "gguf", "matplotlib"), "train"),
    "docker": "docker",
    "ray": "ray",
}


def require(what: str, *packages: str) -> None:
    """Check that `what` finds its packages; nothing is imported.

    Raises:
        ConfigError: one of them is not installed; says how to install it.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"{what} needs {', '.join(missing)}, not installed here: {pip_line(missing[0])}"
        )


def pip_line(package: str) -> str:
    """The command that installs a package of an extra."""
    return f"pip install 'agentrl[{_EXTRA[package]}]'"


def as_config_error(error: ImportError, what: str) -> ConfigError | None:
    """A failed import of such a package as what a user can mend; None for any other."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRA:
        return None
    return ConfigError(f"{what} needs {package}, not installed here: {pip_line(package)}")
