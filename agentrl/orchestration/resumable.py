"""What a resume may not change, checked before anything is loaded."""

from typing import Final

from agentrl.config import Loaded
from agentrl.config.dump import toml_value
from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import NO_OBJECTS, Overrides
from agentrl.orchestration.fingerprints import newest_state
from agentrl.orchestration.layers import Layers, flat_values, load_resumed
from agentrl.run_dir import RunDirectory

_TASKS: Final = (
    "env.",
    "model",
    "seed",
    "rollout.tasks_per_step",
    "rollout.sampler",
    "rollout.group_size",
    "deterministic",
)
"""What decides which tasks a step trains on: a resumed run keeps it."""
_WEIGHTS: Final = ("trainer.lora.rank", "trainer.lora.targets", "trainer.optimizer")
"""What decides which tensors a checkpoint has, beside the critic that ppo alone has."""


def check_resumable(
    directory: RunDirectory, loaded: Loaded[RunConfig], objects: Overrides = NO_OBJECTS
) -> None:
    """Compare a configuration with what the run was started with, whatever `config.toml` says now.

    Raises:
        ConfigError: a key differs that a resumed run has to keep, or the steps are done already.
    """
    state = newest_state(directory.checkpoints)
    step = 0 if state is None else int(state["step"])
    started, now = Layers.read(directory).values, flat_values(loaded)
    started = started or flat_values(load_resumed(directory, objects=objects))
    for key in dict.fromkeys((*started, *now)):
        is_new = key not in started and loaded.origins[key] == "default"
        before, after = started.get(key), now.get(key)
        # An algorithm has set other keys, which would go on to say what the old one set.
        is_kept = key.startswith(_TASKS) or (
            step > 0 and (key in _WEIGHTS or key == "trainer.algorithm")
        )
        if before != after and is_kept and not is_new:
            raise ConfigError(
                f"{key}: got {toml_value(after)}, but the run was started with "
                f"{toml_value(before)}; a resumed run has to keep it, so start a new run instead"
            )
    if step > loaded.config.steps:
        raise ConfigError(
            f"steps: got {loaded.config.steps}, but the run has done {step} already; give a larger "
            "--steps to go on"
        )
