"""Public fakes, for tests of environments and of what runs them."""

from agentrl.testing.agents import EchoAgent, NullAgent, RandomAgent, ScriptedAgent

__all__ = ["EchoAgent", "NullAgent", "RandomAgent", "ScriptedAgent"]
