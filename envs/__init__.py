"""Environments: `ToolEnv`, what it is made of, and the built-in ones by name."""

from agentrl.envs.agents import EchoAgent, MixtureAgent, NullAgent, RandomAgent, ScriptedAgent
from agentrl.envs.context import (
    Ask,
    ContextPolicy,
    ContextView,
    DropToolResults,
    Keep,
    Summarise,
    Window,
)
from agentrl.envs.gym_adapter import TextSpace, TokenSpace
from agentrl.envs.resolve import BUILT_IN, resolve_env
from agentrl.envs.services import EnvServices, default_services
from agentrl.envs.token_env import TokenEnv
from agentrl.envs.toolenv import ToolEnv
from agentrl.envs.transition import ToolAnswer, Transition

__all__ = [
    "BUILT_IN",
    "Ask",
    "ContextPolicy",
    "ContextView",
    "DropToolResults",
    "EchoAgent",
    "EnvServices",
    "Keep",
    "MixtureAgent",
    "NullAgent",
    "RandomAgent",
    "ScriptedAgent",
    "Summarise",
    "TextSpace",
    "TokenEnv",
    "TokenSpace",
    "ToolAnswer",
    "ToolEnv",
    "Transition",
    "Window",
    "default_services",
    "resolve_env",
]
