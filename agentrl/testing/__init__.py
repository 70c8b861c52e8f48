"""Public fakes, for tests of environments and of what runs them.

What needs more than a test of an environment has is imported from its own module: `two_ranks`,
`local_ray`, `virtual_clock` and the kit that attacks sandboxes.
"""

from agentrl.testing.agents import EchoAgent, NullAgent, RandomAgent, ScriptedAgent
from agentrl.testing.flaky_engine import flaky_engine

__all__ = ["EchoAgent", "NullAgent", "RandomAgent", "ScriptedAgent", "flaky_engine"]
