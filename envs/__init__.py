"""Environments: `ToolEnv` and the built-in ones."""

from agentrl.envs.services import EnvServices
from agentrl.envs.spaces import TextSpace, TokenSpace
from agentrl.envs.toolenv import ToolEnv
from agentrl.envs.transition import Transition

__all__ = ["EnvServices", "TextSpace", "TokenSpace", "ToolEnv", "Transition"]
