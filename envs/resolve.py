"""From what a user writes to an environment class."""

from typing import Final

from agentrl.config.seams import Seam
from agentrl.envs.declaration import refresh_declaration
from agentrl.envs.toolenv import ToolEnv
from agentrl.errors import ConfigError

BUILT_IN: Final = {
    "calculator": "agentrl.envs.calculator:Calculator",
    "code_sandbox": "agentrl.envs.code_sandbox:CodeSandbox",
    "long_haul": "agentrl.envs.long_haul:LongHaul",
    "number_guess": "agentrl.envs.number_guess:NumberGuess",
    "swe_sandbox": "agentrl.envs.swe_sandbox:SweSandbox",
}


def resolve_env(ref: str | type[ToolEnv]) -> type[ToolEnv]:
    """The class that `ref` is or names, checked and by what its files hold now.

    Args:
        ref: a class, a built-in name, `pkg.mod:Name` or `path/file.py:Name`.

    Raises:
        ConfigError: There is none, or what it declares is wrong.
    """
    found = Seam("environment", BUILT_IN, "agentrl.environments").find(ref)
    if not (isinstance(found, type) and issubclass(found, ToolEnv)):
        raise ConfigError(f"environment {ref} is no subclass of ToolEnv; name a class that is")
    refresh_declaration(found)
    return found
