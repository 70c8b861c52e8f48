"""Pools of devices, and the roles that lie in them.

    [pools]               [roles]
    train = "6 x gpu"     actor = "train"        in one pool: colocated, one after the other
    serve = "2 x gpu"     reference = "train"
    cpu = "*"             rollout = "serve"      in a pool of its own: split
                          environment = "cpu"    without a pool, at an address: standalone

Without `[pools]` a run takes what its other keys say, and nothing here is asked.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from agentrl.config.anchor import REWARD_MODEL
from agentrl.config.nearest import nearest
from agentrl.config.plain import as_mapping
from agentrl.errors import ConfigError
from agentrl.orchestration.config import Role, RunConfig

DeviceKind: TypeAlias = Literal["gpu", "cpu"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
MODEL_ROLES: Final[tuple[Role, ...]] = ("actor", "rollout", "critic", "reference", "reward")
"""Those that have weights; environments run on CPUs."""
_OF_TRAINER: Final[tuple[Role, ...]] = ("critic", "reference")
_POOL: Final = re.compile(r"(?P<count>\d{1,6}|\*)\s*(?:x\s*(?P<kind>gpu|cpu))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Devices of one kind, and the roles that have them."""

    name: str
    kind: DeviceKind
    count: int | None
    """None: all that no other pool takes."""
    roles: tuple[Role, ...] = ()

    @property
    def text(self) -> str:
        """As `[pools]` has it."""
        return "*" if self.count is None else f"{self.count} x {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """All pools of a run."""

    pools: tuple[Pool, ...]
    tp: int = 1
    """Devices that share one copy of the engine's weights."""

    def pool_of(self, role: Role) -> Pool | None:
        """Where a role lies; None: it has no pool."""
        return next((pool for pool in self.pools if role in pool.roles), None)


def parse_pool(name: str, text: str) -> Pool:
    """A pool as `4 x gpu`, `2 x cpu` or `*`. Raises ConfigError for another text."""
    match = _POOL.fullmatch(text.strip())
    if match is None or (match["kind"] is None) != (match["count"] == "*"):
        raise ConfigError(
            f"pools.{name}: got {text!r}, expected a number and a kind such as 4 x gpu or 2 x cpu, "
            "or * for every CPU that no other pool takes"
        )
    count = None if match["count"] == "*" else int(match["count"])
    if count == 0:
        raise ConfigError(f"pools.{name}: got {text!r}, expected 1 device at least")
    return Pool(name=name, kind="gpu" if match["kind"] == "gpu" else "cpu", count=count)


def running_roles(config: RunConfig) -> tuple[Role, ...]:
    """The roles with weights that a run has on devices of its own; those by address are not."""
    engine = config.engine
    is_there = {
        "actor": True,
        "rollout": not (engine.sglang.urls or engine.vllm.urls),
        "critic": config.trainer.has_critic,
        "reference": config.trainer.has_reference,
        "reward": (config.verifier or "").startswith(REWARD_MODEL),
    }
    return tuple(role for role in MODEL_ROLES if is_there[role])


def read_placement(config: RunConfig) -> Placement | None:
    """What `[pools]` and `[roles]` ask for; None without pools.

    Raises:
        ConfigError: a pool that is none, that no role is in or that is not there; a role without a
            pool, or one that the run does not have; what a run cannot do in these pools.
    """
    asked: dict[Role, str] = {r: n for r in ROLES if (n := getattr(config.roles, r)) is not None}
    if not config.pools:
        for role, name in asked.items():
            raise ConfigError(f"roles.{role}: got {name}, but there are no pools; add [pools]")
        return None
    pools = {name: parse_pool(name, text) for name, text in config.pools.items()}
    for role, name in asked.items():
        if name not in pools:
            raise ConfigError(f"roles.{role}: there is no pool {name}, {nearest(name, pools)}")
    _check_roles_run(config, asked, list(pools))
    placed = [
        replace(pool, roles=tuple(role for role, name in asked.items() if name == pool.name))
        for pool in pools.values()
    ]
    for pool in placed:
        if not pool.roles:
            raise ConfigError(
                f"pools.{pool.name}: no role is in it; name it in [roles], or leave it out"
            )
    rest = [pool for pool in placed if pool.count is None]
    for pool in rest:
        if pool is not rest[0] or pool.roles != ("environment",):
            raise ConfigError(
                f"pools.{pool.name}: got *, expected a number, such as 2 x cpu: what is left can "
                "be one pool's, and environments alone run on whatever that is"
            )
    servers = {"sglang": config.engine.sglang.tp_size, "vllm": config.engine.vllm.tp_size}
    placement = Placement(pools=tuple(placed), tp=servers.get(config.engine.name, 1))
    check_runs(config, placement)
    return placement


def _check_roles_run(config: RunConfig, asked: Mapping[Role, str], pools: list[str]) -> None:
    running = running_roles(config)
    for role in MODEL_ROLES:
        if role in asked and role not in running:
            raise ConfigError(
                f"roles.{role}: got {asked[role]}, but this run has no {role} on devices of its "
                "own; leave it out"
            )
        # A reward model is a verifier, which is with the driver unless it is said otherwise.
        if role in running and role not in asked and role != "reward":
            raise ConfigError(
                f"roles.{role}: has no pool, but the run has that role; set it to one of "
                f"{', '.join(pools)}"
            )


def check_runs(config: RunConfig, placement: Placement) -> None:
    """Raise ConfigError for what a run cannot do in these pools, whatever machines there are."""
    trainer = config.trainer
    actor, rollout = placement.pool_of("actor"), placement.pool_of("rollout")
    assert actor is not None, "the actor always has a pool"
    if actor.count != trainer.ranks:
        raise ConfigError(
            f"trainer.ranks: got {trainer.ranks}, but the actor's pool {actor.name} has "
            f"{actor.text}; leave it out"
        )
    if (trainer.device == "cpu") != (actor.kind == "cpu"):
        raise ConfigError(
            f"trainer.device: got {trainer.device}, but the actor's pool {actor.name} has "
            f"{actor.text}; leave it out"
        )
    for role, pool in pools_apart(placement).items():
        _check_role_can_lie_apart(config, role, pool)
    reward = placement.pool_of("reward")
    if reward is not None and reward is not actor:
        raise ConfigError(
            f"roles.reward: got {reward.name}, but a reward model is a process of the driver's "
            f"machine; set it to {actor.name}, or leave it out"
        )
    environment = placement.pool_of("environment")
    if environment is not None and environment.kind == "gpu":
        raise ConfigError(
            f"roles.environment: got {environment.name}, whose devices are GPUs, and environments "
            "run on CPUs; give them a pool of cpu"
        )
    if rollout is not None:
        _check_servers_fill_pool(config, rollout, placement)


def pools_apart(placement: Placement) -> dict[Role, Pool]:
    """Of the roles that the trainer has, those in another pool than the actor."""
    actor, found = placement.pool_of("actor"), dict[Role, Pool]()
    for role in _OF_TRAINER:
        pool = placement.pool_of(role)
        if pool is not None and pool is not actor:
            found[role] = pool
    return found


def _check_role_can_lie_apart(config: RunConfig, role: Role, pool: Pool) -> None:
    trainer, where = config.trainer, f"roles.{role}: got {pool.name}, apart from the actor"
    if role == "reference" and trainer.kl.kind == "exact":
        raise ConfigError(
            f"{where}, but trainer.kl.kind exact compares whole distributions where the policy is; "
            "take k3, or give it the actor's pool"
        )
    if trainer.lora.rank:
        raise ConfigError(
            f"{where}, but with trainer.lora it shares the actor's base; give it the actor's pool"
        )
    if not trainer.is_apart or (pool.kind == "gpu" and trainer.executor != "ray"):
        takes = "ray" if pool.kind == "gpu" else "processes or ray"
        raise ConfigError(
            f"{where}, which trainer.executor {trainer.executor} cannot do; take {takes}"
        )


def _check_servers_fill_pool(config: RunConfig, pool: Pool, placement: Placement) -> None:
    engine, has = config.engine, f"pool {pool.name} has {pool.text}"
    if engine.name not in ("sglang", "vllm"):
        in_driver = pool is placement.pool_of("actor") and not config.trainer.is_apart
        if pool.kind == "gpu" and not in_driver:
            raise ConfigError(
                f"roles.rollout: got {pool.name}, but engine {engine.name} samples with the "
                "driver; give it a pool of 1 x cpu, or take --engine sglang"
            )
        return
    settings = engine.sglang if engine.name == "sglang" else engine.vllm
    if (pool.count or 0) % settings.tp_size:
        raise ConfigError(
            f"engine.{engine.name}.tp_size: got {settings.tp_size}, but {has}; give a divisor"
        )
    if pool.count != settings.tp_size * settings.dp_size:
        raise ConfigError(
            f"engine.{engine.name}.dp_size: got {settings.dp_size}, but {has} and each server "
            f"takes {settings.tp_size}; leave it out"
        )


def keys_of_pools(values: Mapping[str, object]) -> dict[str, object]:
    """The keys that pools settle: ranks, their device and the number of servers.

    Args:
        values: what was given, by dotted keys. What is wrong in it is refused later.
    """
    pools, found = as_mapping(values.get("pools")) or {}, dict[str, object]()
    for role in ("actor", "rollout"):
        name = values.get(f"roles.{role}")
        text = pools.get(str(name))
        try:
            pool = parse_pool(str(name), text if isinstance(text, str) else "")
        except ConfigError:
            continue
        if role == "actor":
            found["trainer.ranks"] = pool.count or 1
            found["trainer.device"] = "auto" if pool.kind == "gpu" else "cpu"
            if {values.get(f"roles.{each}", name) for each in _OF_TRAINER} != {name}:
                found["trainer.executor"] = "processes"
        elif (engine := values.get("engine.kind")) in ("sglang", "vllm"):
            tp = values.get(f"engine.{engine}.tp_size", 1)
            if isinstance(tp, int) and tp > 0:
                found[f"engine.{engine}.dp_size"] = max(1, (pool.count or 1) // tp)
    return found
