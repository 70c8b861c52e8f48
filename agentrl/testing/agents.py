"""Agents without a model; environments' own checks use them too, so they live with those."""

from agentrl.envs.agents import EchoAgent, NullAgent, RandomAgent, ScriptedAgent

__all__ = ["EchoAgent", "NullAgent", "RandomAgent", "ScriptedAgent"]
