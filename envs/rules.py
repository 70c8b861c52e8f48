"""The rules of an environment: what its class says about every episode, in one frozen type.

A rule is an attribute of `DeclaredRules` and a field of `EnvRules`, both here, and is read where it
acts: of a turn in `turn_rules`, of a hook in `hooks`. Whatever lies between, also the way into a
process of its own, carries all of them and names none.
"""

from typing import Literal

from pydantic import ConfigDict, Field, ValidationError

from agentrl.config import Config
from agentrl.config.describe import describe_expected
from agentrl.errors import ConfigError

Isolation = Literal["none", "process"]


class DeclaredRules:
    """The attributes of `ToolEnv` that a subclass, or an instance before its reset, may set."""

    system: str = ""
    """The system prompt; empty: none."""
    max_turns: int = 8
    """After this many turns the episode is truncated."""
    warn_turns: int = 0
    """When no more turns than these are left, the last tool result of a turn says how many."""
    isolation: Isolation = "none"
    """"process": each episode is played in a process of its own."""
    tool_timeout_s: float = 30.0
    hook_timeout_s: float = 60.0
    """For setup, reply, score, state_key, teardown and each resource's closing."""
    grace_s: float = 1.0
    """How long a hanging sync tool is waited for after its timeout."""
    max_tool_tokens: int = 2048
    """A longer tool result loses its middle."""


class EnvRules(Config):
    """The rules that one episode is played by; see `DeclaredRules` for what they mean."""

    model_config = ConfigDict(strict=True, allow_inf_nan=True)

    system: str | None
    max_turns: int = Field(gt=0)
    warn_turns: int = Field(ge=0)
    isolation: Isolation
    tool_timeout_s: float = Field(gt=0)
    hook_timeout_s: float = Field(gt=0)
    grace_s: float = Field(gt=0)
    max_tool_tokens: int = Field(gt=0)


def rules_of(env: DeclaredRules | type[DeclaredRules]) -> EnvRules:
    """The rules that a class or an instance has now.

    Raises:
        ConfigError: One is of another type, or out of range.
    """
    given = {name: getattr(env, name) for name in EnvRules.model_fields}
    try:
        return EnvRules.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = str(problem["loc"][0])
        name = (env if isinstance(env, type) else type(env)).__name__
        raise ConfigError(
            f"{name}.{key} is {given[key]!r}, expected {describe_expected(problem)}"
        ) from error
