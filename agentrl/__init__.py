"""agentrl trains language-model agents by reinforcement learning in environments with tools.

Importing it is light: it registers the built-in environments with Gymnasium, and the names below
are loaded when they are first used.
"""

import signal
from importlib import import_module
from typing import TYPE_CHECKING

from agentrl.terminated import is_command, leave

if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, leave)  # before anything that takes its time; `main` ends it

from gymnasium.envs.registration import (
    register,  # pyright: ignore[reportUnknownVariableType]  # its kwargs are untyped
)

if TYPE_CHECKING:
    from agentrl.api import Run, evaluate, play, train
    from agentrl.envs import ToolEnv
    from agentrl.orchestration.load import load_run_config
    from agentrl.orchestration.observers import Observer

__all__ = ["Observer", "Run", "ToolEnv", "evaluate", "load_run_config", "play", "train"]

_HOMES = {
    "Observer": "agentrl.orchestration.observers",
    "Run": "agentrl.api",
    "ToolEnv": "agentrl.envs",
    "evaluate": "agentrl.api",
    "load_run_config": "agentrl.orchestration.load",
    "play": "agentrl.api",
    "train": "agentrl.api",
}


def __getattr__(name: str) -> object:
    """Load a public name from its home."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'agentrl' has no attribute {name!r}")


register("agentrl/Calculator-v0", entry_point="agentrl.envs.calculator:Calculator")
register("agentrl/CodeSandbox-v0", entry_point="agentrl.envs.code_sandbox:CodeSandbox")
register("agentrl/LongHaul-v0", entry_point="agentrl.envs.long_haul:LongHaul")
register("agentrl/NumberGuess-v0", entry_point="agentrl.envs.number_guess:NumberGuess")
register("agentrl/SweSandbox-v0", entry_point="agentrl.envs.swe_sandbox:SweSandbox")
