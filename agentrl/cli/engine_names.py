"""The engines that have servers."""

from collections.abc import Sequence

from agentrl.config.nearest import nearest
from agentrl.errors import ConfigError

SERVED = ("sglang", "local")
INSTALLED = ("sglang",)
"""Those that need an environment of their own."""


def check_name(name: str, known: Sequence[str]) -> None:
    """Raise ConfigError for an engine that is none of the known ones."""
    if name not in known:
        raise ConfigError(f"engine {name!r} has no server of its own, {nearest(name, known)}")
