"""Agents without a model; environments' own checks use them too, so they live with those."""

from agentrl.envs.agents import EchoAgent, MixtureAgent, NullAgent, RandomAgent, ScriptedAgent

__all__ = ["EchoAgent", "MixtureAgent", "NullAgent", "RandomAgent", "ScriptedAgent"]
