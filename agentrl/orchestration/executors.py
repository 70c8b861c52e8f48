"""Where a run's ranks and episodes are."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from agentrl.errors import ConfigError
from agentrl.extras import require
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.env_mix import BoundEnv
from agentrl.orchestration.placement.pools import pools_apart, read_placement
from agentrl.rollout import Codec
from agentrl.rollout.player import pickle_envs
from agentrl.rollout.player_pool import PlayerPool
from agentrl.workers.executors import Executor, Processes

if TYPE_CHECKING:
    from agentrl.orchestration.ray_workers import RayActors, RayPlayers
    from agentrl.trainer.roles import RoleApart, RolePlace


def check_executor(config: RunConfig, envs: Sequence[BoundEnv]) -> None:
    """Raise ConfigError if ranks and environments cannot be where `trainer.executor` says."""
    trainer = config.trainer
    if trainer.executor == "inline" and trainer.ranks > 1:
        raise ConfigError(
            f"trainer.executor: got inline with {trainer.ranks} ranks, which need processes of "
            "their own; use processes or ray"
        )
    if trainer.executor == "ray":
        require("trainer.executor ray", "ray")
        _make_ray_actors(config, trainer.device).check(trainer.ranks)
        if config.ray.players != 0:
            makers = pickle_envs([env.maker for env in envs])
            _make_ray_players(config).check(makers, config.ray.players)


def make_executor(config: RunConfig, device: str) -> Executor:
    """Where ranks of the trainer are, or of a role beside it, if they are apart."""
    from agentrl.trainer.rank_group import PRELOAD

    if config.trainer.executor != "ray":
        return Processes(PRELOAD, config.fault.deadline_s)
    return _make_ray_actors(config, device)


def place_roles(config: RunConfig) -> "dict[RoleApart, RolePlace]":
    """Those of the trainer's roles that have ranks of their own."""
    from agentrl.trainer.roles import RolePlace

    placement = read_placement(config)
    places: dict[RoleApart, RolePlace] = {}
    for role, pool in (pools_apart(placement) if placement else {}).items():
        device = "cpu" if pool.kind == "cpu" else "auto"
        executor = make_executor(config, device)
        place = RolePlace(ranks=pool.count or 1, device=device, executor=executor)
        places[cast("RoleApart", role)] = place
    return places


async def start_players(
    config: RunConfig, codec: Codec, envs: Sequence[BoundEnv]
) -> PlayerPool | None:
    """Who plays the episodes elsewhere; None: this process does.

    Raises:
        ConfigError: an environment cannot be played there.
        RunError: one does not come up.
    """
    if config.trainer.executor != "ray" or config.ray.players == 0:
        return None
    pickled = pickle_envs([env.maker for env in envs])
    pool = PlayerPool(
        _make_ray_players(config).start(config.ray.players),
        codec=codec,
        envs=pickled,
        deadline_s=config.fault.deadline_s,
    )
    try:
        await pool.start()
    except BaseException:
        await pool.aclose()
        raise
    return pool


def _make_ray_players(config: RunConfig) -> "RayPlayers":
    from agentrl.orchestration.ray_workers import RayPlayers

    return RayPlayers(
        _name_run(config), config.ray.address, config.fault.deadline_s, config.ray.code
    )


def _name_run(config: RunConfig) -> str:
    return config.name or f"unnamed-{os.getpid()}"


def _make_ray_actors(config: RunConfig, device: str) -> "RayActors":
    from agentrl.orchestration.ray_workers import RayActors

    return RayActors(
        name=_name_run(config),
        address=config.ray.address,
        cpus=config.ray.cpus,
        gpus=float(device != "cpu"),
        deadline_s=config.fault.deadline_s,
        code=config.ray.code,
    )
