"""`choose_placement`: what `--placement auto` does, from a configuration to a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agentrl.aio import run
from agentrl.config.plain import as_mapping
from agentrl.engine.local.models.files import read_json
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.errors import ConfigError
from agentrl.orchestration.budget import fits_device_memory
from agentrl.orchestration.config import Role, RunConfig
from agentrl.orchestration.kinds import SERVERS
from agentrl.orchestration.placement.bill import estimate_pool
from agentrl.orchestration.placement.machines import MachineRoom
from agentrl.orchestration.placement.pools import (
    DeviceKind,
    Placement,
    Pool,
    check_runs,
    running_roles,
)
from agentrl.orchestration.placement.profile import measure_costs
from agentrl.orchestration.placement.search import (
    RankedPlacement,
    enumerate_placements,
    rank_placements,
)
from agentrl.orchestration.preflight import Plan
from agentrl.orchestration.schedules import make_schedule

_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChoice:
    """The placements that were ranked, the best first, and how many were not."""

    ranked: Sequence[RankedPlacement]
    num_made: int
    num_cannot_run: int
    num_too_large: int

    def keys(self, engine: str) -> dict[str, object]:
        """What a configuration needs for the best one, with that engine."""
        best = self.ranked[0].placement
        found: dict[str, object] = {
            "pools": {pool.name: pool.text for pool in best.pools},
            "roles": {role: pool.name for pool in best.pools for role in pool.roles},
        }
        return found | ({"engine": {engine: {"tp_size": best.tp}}} if engine in SERVERS else {})

    def lines(self) -> Iterator[str]:
        """The table, for people."""
        yield (
            f"{self.num_made} placements: {self.num_cannot_run} cannot be run, "
            f"{self.num_too_large} do not fit, {len(self.ranked)} were played by the virtual clock"
        )
        yield "s a step  trainer  places  placement"
        for one in self.ranked[:_SHOWN]:
            pools = ", ".join(f"{pool.name} {pool.text}" for pool in one.placement.pools)
            yield (
                f"{one.step_s:8.3g}  {one.trainer_busy:7.0%}  {one.engine_busy:6.0%}  "
                f"{pools}, tp {one.placement.tp}"
            )


def choose_placement(plan: Plan, room: MachineRoom) -> PlacementChoice:
    """Measure, make all placements on the devices of a room, and rank them.

    Raises:
        ConfigError: none fits.
    """
    config, folder = plan.config, resolve_model(plan.config.model, seed=plan.config.seed)
    kind: DeviceKind = "gpu" if room.count("gpu") else "cpu"
    node = min(node.count(kind) for node in room.nodes if node.count(kind))
    roles: list[Role] = [role for role in running_roles(config) if role != "reward"]  # a verifier's
    made = list(
        enumerate_placements(
            roles, room.count(kind), node=node, kind=kind, tp_sizes=_tp_sizes(config, folder)
        )
    )
    running = [placement for placement in made if _can_run(config, placement)]
    fitting = [*_keep_what_fits(config, running, room.device_bytes(kind))]
    if not fitting:
        raise ConfigError(
            f"--placement: of {len(made)} placements of {', '.join(roles)} on {room.text} none "
            f"fits, {len(made) - len(running)} cannot be run; `agentrl train --dry-run "
            "--device-memory` says what saves memory"
        )
    costs = run(measure_costs(plan, folder))
    schedule = make_schedule(config)
    if schedule.concurrency == "auto":
        schedule = replace(schedule, concurrency=None)
    return PlacementChoice(
        ranked=rank_placements(fitting, costs, schedule, node=node),
        num_made=len(made),
        num_cannot_run=len(made) - len(running),
        num_too_large=len(running) - len(fitting),
    )


def _tp_sizes(config: RunConfig, folder: Path) -> list[int]:
    """In how many parts a model's attention heads can be cut, with servers."""
    if config.engine.name not in SERVERS:
        return [1]
    shape = as_mapping(read_json(folder / "config.json")) or {}
    heads = shape.get("num_attention_heads")
    return [n for n in range(1, 65) if isinstance(heads, int) and heads % n == 0] or [1]


def _can_run(config: RunConfig, placement: Placement) -> bool:
    """True if executors, sharding and engine allow it."""
    actor, trainer, name = placement.pool_of("actor"), config.trainer, config.engine.name
    assert actor is not None, "the actor runs always"
    count, rollout = actor.count or 1, placement.pool_of("rollout")
    episodes = config.rollout.tasks_per_step * config.rollout.group_size
    shares = (trainer.replicate, trainer.sequence_parallel)
    if any(count % share for share in shares) or count // shares[1] > episodes:
        return False
    device = "cpu" if actor.kind == "cpu" else "auto"
    changed: dict[str, object] = {
        "trainer": trainer.model_copy(update={"ranks": count, "device": device})
    }
    if name in SERVERS and rollout is not None:
        servers = {"tp_size": placement.tp, "dp_size": (rollout.count or 1) // placement.tp}
        settings = getattr(config.engine, name).model_copy(update=servers)
        changed["engine"] = config.engine.model_copy(update={name: settings})
    try:
        check_runs(config.model_copy(update=changed), placement)
    except ConfigError:
        return False
    return True


def _keep_what_fits(
    config: RunConfig, placements: Sequence[Placement], device_bytes: int
) -> Iterator[Placement]:
    """Those whose devices have the bytes; all if nobody knows what a device has."""
    known: dict[tuple[object, ...], bool] = {}

    def fits(placement: Placement, pool: Pool) -> bool:
        key = (pool.roles, pool.count, placement.tp if "rollout" in pool.roles else 1)
        if key not in known:
            needs = sum(estimate_pool(config, placement, pool).values())
            known[key] = not device_bytes or fits_device_memory(needs, device_bytes)
        return known[key]

    return (p for p in placements if all(fits(p, pool) for pool in p.pools))
