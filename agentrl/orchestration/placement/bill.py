"""What a placement asks for, devices and the bytes of each, and what of it there is too little."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agentrl.orchestration.budget import (
    estimate_parts,
    find_flags_to_fit_memory,
    find_footprint,
    fits_device_memory,
)
from agentrl.orchestration.config import Role, RunConfig
from agentrl.orchestration.placement.machines import MachineRoom, missing_devices
from agentrl.orchestration.placement.pools import Placement, Pool

_PASSES: Final = ("activations", "logits", "temporary", "heap")
_PARTS: Final[Mapping[Role, tuple[str, ...]]] = {
    "actor": ("weights", "gradients", "optimizer", *_PASSES),
    "critic": ("critic", *_PASSES),
    "reference": ("reference", "logits", "temporary"),  # nothing is kept for a backward pass
    "rollout": ("engine weights", "cache"),
}
"""Which of the parts of an estimate a role holds; of a reward model's nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Devices and bytes, beside what there is."""

    placement: Placement
    room: MachineRoom
    parts: Mapping[str, Mapping[str, int]]
    """By pool, the bytes of each of its devices by what they are for."""
    missing: Sequence[str]
    """What does not fit and what would, a sentence each."""

    def to_json(self) -> dict[str, object]:
        """For programs."""
        pools = [
            {
                "name": pool.name,
                "devices": pool.text,
                "roles": list(pool.roles),
                "parts": dict(self.parts[pool.name]),
                "device_bytes": self.room.device_bytes(pool.kind),
            }
            for pool in self.placement.pools
        ]
        return {"pools": pools, "cluster": self.room.text, "missing": list(self.missing)}

    def lines(self) -> Iterator[str]:
        """For people."""
        for pool in self.placement.pools:
            parts = self.parts[pool.name]
            size, has = sum(parts.values()) / 1e9, self.room.device_bytes(pool.kind) / 1e9
            of = f" of {has:.3g}" if has else ""
            most = sorted(parts, key=lambda name: -parts[name])[:3]
            what = ", ".join(f"{name} {parts[name] / 1e9:.3g}" for name in most if parts[name])
            needs = f"{size:.3g}{of} GB a device ({what})" if what else ""
            yield f"{pool.name:10} {pool.text:10} {', '.join(pool.roles)}: {needs}".rstrip(": ")
        yield self.room.text + (": everything fits" if not self.missing else "")
        yield from self.missing


def make_bill(config: RunConfig, placement: Placement, room: MachineRoom) -> Bill:
    """Count what the pools need, and compare."""
    parts = {pool.name: estimate_pool(config, placement, pool) for pool in placement.pools}
    missing = missing_devices(config, placement, room)
    for pool in placement.pools:
        has, needs = room.device_bytes(pool.kind), sum(parts[pool.name].values())
        if has and not fits_device_memory(needs, has):
            todo = _find_way_out(config, placement, pool, room)
            missing.append(
                f"pools.{pool.name}: {', '.join(pool.roles)} need {needs / 1e9:.3g} GB of each "
                f"device, which has {has / 1e9:.3g}; {todo}"
            )
    return Bill(placement=placement, room=room, parts=parts, missing=missing)


def estimate_pool(config: RunConfig, placement: Placement, pool: Pool) -> Mapping[str, int]:
    """Bytes of each device of a pool at its peak, by what they are for."""
    if pool.count is None or not _PARTS.keys() & {*pool.roles}:
        return {}
    footprint = find_footprint(config)
    if "rollout" in pool.roles:
        # Each server has its share of the rows.
        servers = max(1, pool.count // placement.tp)
        cached = max(footprint.longest, footprint.cached_tokens // servers)
        footprint = replace(footprint, num_devices=placement.tp, cached_tokens=cached)
    if not {"actor", "rollout"} <= {*pool.roles}:
        footprint = replace(footprint, share_device=False, shares_weights=False)
    if "rollout" not in pool.roles:
        footprint = replace(footprint, num_devices=0)
    trainer = config.trainer
    copies = trainer.replicate if pool.count % trainer.replicate == 0 else 1
    ranks = {"ranks": pool.count, "replicate": copies}
    config = config.model_copy(update={"trainer": trainer.model_copy(update=ranks)})
    held = {part for role in pool.roles for part in _PARTS.get(role, ())}
    parts = estimate_parts(config, footprint)
    return {name: size for name, size in parts.items() if name in held}


def _find_way_out(config: RunConfig, placement: Placement, pool: Pool, room: MachineRoom) -> str:
    """The fewest devices with which a pool fits, or settings; `pool` has a number."""
    has, count = room.device_bytes(pool.kind), pool.count or 1
    for more in range(count + placement.tp, room.count(pool.kind) + 1, placement.tp):
        parts = estimate_pool(config, placement, replace(pool, count=more))
        if fits_device_memory(sum(parts.values()), has):
            return f'{pool.name} = "{more} x {pool.kind}" would fit'
    flags = find_flags_to_fit_memory(
        config, has, lambda changed: sum(estimate_pool(changed, placement, pool).values())
    )
    if flags is None:
        return "no setting makes it fit: take a smaller model, or larger devices"
    return f"it would fit with {' '.join(flags)}"
