"""Engines: what samples. `Engine` is the protocol, `scripted` and `local` are implementations."""

from agentrl.engine.protocol import Engine, Health, WeightSource

__all__ = ["Engine", "Health", "WeightSource"]
