"""Configuration: frozen values, unknown keys are errors; each class stands beside its owner."""

from agentrl.config.base import Config
from agentrl.config.dump import dump_config
from agentrl.config.load import Loaded, load_config, parse_params

__all__ = ["Config", "Loaded", "dump_config", "load_config", "parse_params"]
