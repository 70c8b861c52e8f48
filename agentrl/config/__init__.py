"""Configuration: frozen values, unknown keys are errors; each class stands beside its owner."""

from agentrl.config.draft import Loaded
from agentrl.config.dump import dump_config
from agentrl.config.load import load_config, parse_params
from agentrl.config.schema import Config

__all__ = ["Config", "Loaded", "dump_config", "load_config", "parse_params"]
