"""Which placement is the fastest: all that fit are made, and the virtual clock ranks them.

    partitions of the roles ─▶ counts of devices, TP sizes ─▶ what fits ─▶ by `least_s` ─▶ clock
    (4 roles: 15)                                                          a bound, rising

No step is shorter than the bound, so what comes behind the best that was found need not be played.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import le
from typing import Final

from agentrl.orchestration.config import Role
from agentrl.orchestration.placement.costs import StepCosts
from agentrl.orchestration.placement.pools import DeviceKind, Placement, Pool
from agentrl.schedule import Schedule
from agentrl.testing.virtual_clock import simulate

STEPS: Final = 6
"""Of a simulated run."""
MOST_PLAYED: Final = 64
_SLACK: Final = 0.95
"""Draws of few steps may be shorter than in the mean by so much."""
_FINEST: Final = 16
"""A pool larger than a node is a multiple of this share of all devices, in whole nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlacement:
    """What the clock says of a placement."""

    placement: Placement
    step_s: float
    trainer_busy: float
    engine_busy: float


def partitions(roles: Sequence[Role]) -> Iterator[tuple[tuple[Role, ...], ...]]:
    """All ways to put roles together, each once."""
    if not roles:
        yield ()
        return
    first, *others = roles
    for rest in partitions(others):
        yield ((first,), *rest)
        for i, block in enumerate(rest):
            yield (*rest[:i], (first, *block), *rest[i + 1 :])


def share_devices(devices: int, parts: int, node: int) -> Iterator[tuple[int, ...]]:
    """All ways to give each part some of the devices, none left.

    A part larger than a node has whole nodes, and of more than 16 nodes steps of a sixteenth.
    """
    step = node * max(1, round(devices / node / _FINEST))

    def share(left: int, parts: int) -> Iterator[tuple[int, ...]]:
        sizes = [n for n in range(1, left + 1) if n <= node or n % step == 0 or n == devices]
        if parts == 1:
            yield from [(left,)] * (left in sizes)
            return
        for first in sizes:
            for rest in share(left - first, parts - 1):
                yield (first, *rest)

    return share(devices, parts)


def enumerate_placements(
    roles: Sequence[Role], devices: int, *, node: int, kind: DeviceKind, tp_sizes: Iterable[int]
) -> Iterator[Placement]:
    """All of them, whatever fits; a server is on one node."""
    sizes = sorted({tp for tp in tp_sizes if tp <= node})
    for blocks in partitions(roles):
        for counts in share_devices(devices, len(blocks), node):
            pools = tuple(
                Pool(name="-".join(block), kind=kind, count=count, roles=block)
                for block, count in zip(blocks, counts, strict=True)
            )
            placement = Placement(pools=pools)
            rollout = placement.pool_of("rollout")
            count = (rollout.count or 1) if rollout is not None else 1
            yield from (replace(placement, tp=tp) for tp in sizes if count % tp == 0)


def rank_placements(
    placements: Iterable[Placement],
    costs: StepCosts,
    schedule: Schedule,
    *,
    node: int,
    most: int = MOST_PLAYED,
) -> list[RankedPlacement]:
    """The best first; played are those that may be the best, so many at most."""
    best = _drop_dominated(placements, costs, schedule, node)
    bounds = [(costs.least_s(placement, schedule, node), placement) for placement in best]
    bounds.sort(key=lambda pair: pair[0])
    ranked: list[RankedPlacement] = []
    for bound, placement in bounds[:most]:
        if ranked and bound * _SLACK > min(one.step_s for one in ranked):
            break
        ranked.append(play_placement(placement, costs, schedule, node=node))
    return sorted(ranked, key=lambda one: one.step_s)


def _drop_dominated(
    placements: Iterable[Placement], costs: StepCosts, schedule: Schedule, node: int
) -> Iterator[Placement]:
    """All but those for which another one has the same servers and in nothing longer times."""
    alike: dict[tuple[int, int], list[tuple[tuple[float, ...], Placement]]] = {}
    for placement in placements:
        rollout, work = placement.pool_of("rollout"), costs.workload(placement, schedule, node)
        servers = ((rollout.count or 1) if rollout is not None else 1, placement.tp)
        stands_s = work.stands_s if schedule.staleness else 0.0  # else nothing is sampled then
        alike.setdefault(servers, []).append(((work.train_s, stands_s, work.publish_s), placement))
    for found in alike.values():
        kept: list[tuple[float, ...]] = []
        for times, placement in sorted(found, key=lambda pair: pair[0]):
            if not any(all(map(le, other, times)) for other in kept):
                kept.append(times)
                yield placement


def play_placement(
    placement: Placement,
    costs: StepCosts,
    schedule: Schedule,
    *,
    node: int,
    seed: int = 0,
    steps: int = STEPS,
) -> RankedPlacement:
    """A simulated run on a placement."""
    schedule = replace(schedule, steps=steps)
    run = simulate(schedule, costs.workload(placement, schedule, node), seed=seed)
    return RankedPlacement(
        placement=placement,
        step_s=run.step_s,
        trainer_busy=run.trainer_busy,
        engine_busy=run.engine_busy,
    )
