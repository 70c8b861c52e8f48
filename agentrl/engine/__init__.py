"""Engines: what samples. `Engine` is the protocol, `scripted` and `local` are implementations."""

from agentrl.engine.protocol import Engine, Health
from agentrl.weights.source import WeightSource

__all__ = ["Engine", "Health", "WeightSource"]
