"""The engines that have servers."""

from collections.abc import Sequence

from agentrl.config.nearest import nearest
from agentrl.errors import ConfigError

SERVED = ("sglang", "local")
INSTALLED = ("sglang",)
"""Those that need an environment of their own."""


def check_name(name: str, known: Sequence[str], done: str) -> None:
    """Raise ConfigError for an engine that is none of those that can be `done`."""
    if name not in known:
        raise ConfigError(f"engine {name!r} cannot be {done}, {nearest(name, known)}")
