"""The engines that have servers."""

from agentrl.config.nearest import nearest
from agentrl.errors import ConfigError

SERVERS = ("sglang",)


def check_name(name: str) -> None:
    """Raise ConfigError for an engine without a server."""
    if name not in SERVERS:
        raise ConfigError(f"engine {name!r} has no server of its own, {nearest(name, SERVERS)}")
