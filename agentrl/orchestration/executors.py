"""Which executor a run's ranks are started by."""

import os
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError
from agentrl.extras import require
from agentrl.orchestration.config import RunConfig
from agentrl.workers.executors import Executor, Processes

if TYPE_CHECKING:
    from agentrl.orchestration.ray_workers import RayActors


def check_executor(config: RunConfig) -> None:
    """Raise ConfigError if the ranks cannot be where `trainer.executor` says."""
    trainer = config.trainer
    if trainer.executor == "inline" and trainer.ranks > 1:
        raise ConfigError(
            f"trainer.executor: got inline with {trainer.ranks} ranks, which need processes of "
            "their own; use processes or ray"
        )
    if trainer.executor == "ray":
        require("trainer.executor ray", "ray")
        _make_ray_actors(config).check(trainer.ranks)


def make_executor(config: RunConfig) -> Executor:
    """Where the trainer's ranks are, if they are apart."""
    from agentrl.trainer.rank_group import PRELOAD

    if config.trainer.executor != "ray":
        return Processes(PRELOAD, config.fault.deadline_s)
    return _make_ray_actors(config)


def _make_ray_actors(config: RunConfig) -> "RayActors":
    from agentrl.orchestration.ray_workers import RayActors

    return RayActors(
        name=config.name or f"unnamed-{os.getpid()}",
        address=config.ray.address,
        cpus=config.ray.cpus,
        gpus=float(config.trainer.device != "cpu"),
        deadline_s=config.fault.deadline_s,
    )
