"""Configuration: frozen values, unknown keys are errors; each class stands beside its owner."""

from agentrl.config.base import Config

__all__ = ["Config"]
