"""`MachineRoom`: the nodes that there are, found or described, and whether devices suffice."""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

import psutil

from agentrl.errors import ConfigError
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.placement.pools import DeviceKind, Placement, read_placement

_PART: Final = re.compile(r"(?P<number>\d{1,6})\s*(?P<what>nodes?|cpus?|gpus?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineNode:
    """What one node has."""

    cpus: int
    gpus: int = 0
    gpu_bytes: int = 0
    """Of each of them; 0: not known."""
    memory_bytes: int = 0
    """0: not known."""

    def count(self, kind: DeviceKind) -> int:
        """Its devices of a kind."""
        return self.gpus if kind == "gpu" else self.cpus


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """All nodes."""

    nodes: tuple[MachineNode, ...]

    def count(self, kind: DeviceKind) -> int:
        """Devices of a kind, over all nodes."""
        return sum(node.count(kind) for node in self.nodes)

    def device_bytes(self, kind: DeviceKind) -> int:
        """Of the smallest device; a CPU has its share of a node's memory. 0: not known."""
        if kind == "gpu":
            return min((node.gpu_bytes for node in self.nodes if node.gpus), default=0)
        return min(node.memory_bytes // max(1, node.cpus) for node in self.nodes)

    @property
    def text(self) -> str:
        """Such as `2 nodes with 128 CPU and 16 GPU`."""
        num, gpus = len(self.nodes), self.count("gpu")
        has = f"{self.count('cpu')} CPU" + (f" and {gpus} GPU" if gpus else "")
        return f"{num} node{'s' * (num != 1)} with {has}"


def parse_machines(text: str, device_memory: str | None = None) -> MachineRoom:
    """Nodes as `2 nodes, 64 cpu, 8 gpu` (of each node).

    Args:
        text: what there is.
        device_memory: bytes of each device, such as `80GB`.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or match["what"].rstrip("s") in found:
            raise ConfigError(
                f"--cluster: got {text!r}, expected nodes and what each of them has, such as "
                "'2 nodes, 64 cpu, 8 gpu'"
            )
        found[match["what"].rstrip("s")] = int(match["number"])
    if not found.get("cpu") or found.get("node") == 0:
        raise ConfigError(f"--cluster: got {text!r}, expected 1 node with 1 cpu at least")
    size = _parse_device_memory(device_memory)
    node = MachineNode(
        cpus=found["cpu"],
        gpus=found.get("gpu", 0),
        gpu_bytes=size,
        memory_bytes=0 if found.get("gpu") else size * found["cpu"],
    )
    return MachineRoom((node,) * found.get("node", 1))


def find_machines(config: RunConfig, device_memory: str | None = None) -> MachineRoom:
    """The cluster that `ray.address` names, or this machine.

    Raises:
        ConfigError: nobody answers there.
    """
    size = _parse_device_memory(device_memory)
    if config.trainer.executor == "ray" and config.ray.address != "local":
        from agentrl.orchestration.ray_cluster import list_nodes

        nodes = [
            MachineNode(
                cpus=int(has.get("CPU", 0)),
                gpus=int(has.get("GPU", 0)),
                gpu_bytes=size,
                memory_bytes=int(has.get("memory", 0)),
            )
            for has in list_nodes(config.ray.address, config.name or "plan")
        ]
        return MachineRoom(tuple(nodes))
    from agentrl.trainer.device import count_accelerators  # brings torch

    gpus, gpu_bytes = count_accelerators()
    node = MachineNode(
        cpus=len(os.sched_getaffinity(0)),
        gpus=gpus,
        gpu_bytes=size or gpu_bytes,
        memory_bytes=psutil.virtual_memory().total,
    )
    return MachineRoom((node,))


def _parse_device_memory(text: str | None) -> int:
    if not text:
        return 0
    from agentrl.orchestration.budget import parse_size  # brings torch

    return parse_size(text)


def check_machines(config: RunConfig) -> None:
    """Raise ConfigError if the cluster has fewer devices than the pools ask for, if there are any.

    A cluster that begins with the run is this machine.
    """
    placement = read_placement(config)
    if placement is not None:
        refuse_missing(missing_devices(config, placement, find_machines(config)))


def refuse_missing(missing: Sequence[str]) -> None:
    """Raise ConfigError with a line for each sentence, if there are any."""
    if missing:
        raise ConfigError("\n".join(missing))


def missing_devices(config: RunConfig, placement: Placement, room: MachineRoom) -> list[str]:
    """What there is too little of for the pools, and what would fit; a sentence each."""
    actor = placement.pool_of("actor")
    on_ray = config.trainer.executor == "ray" and actor is not None and actor.kind == "gpu"
    # Beside its GPU, a rank asks Ray for CPUs.
    more = math.ceil((actor.count or 0) * config.ray.cpus) if on_ray and actor is not None else 0
    found: list[str] = []
    for kind in get_args(DeviceKind):
        pools = [pool for pool in placement.pools if pool.kind == kind and pool.count]
        asked = sum(pool.count or 0 for pool in pools) + more * (kind == "cpu")
        has = room.count(kind)
        if asked <= has:
            continue
        each = ", ".join(f"{pool.name} {pool.count}" for pool in pools)
        each += f"{', ' * bool(each)}ranks {more} for ray.cpus" if kind == "cpu" and more else ""
        todo = "give fewer, or add a node"
        if pools:
            largest = max(pools, key=lambda pool: pool.count or 0)
            if (left := (largest.count or 0) - (asked - has)) > 0:
                todo = f'{largest.name} = "{left} x {kind}" would fit'
        found.append(
            f"pools: got {asked} {kind.upper()} ({each}), but there are {has} ({room.text}); {todo}"
        )
    most, rollout = max(node.gpus for node in room.nodes), placement.pool_of("rollout")
    if rollout is not None and rollout.kind == "gpu" and 0 < most < placement.tp:
        found.append(
            f"engine.{config.engine.name}.tp_size: got {placement.tp}, but a server is on one node "
            f"and a node has {most} GPU; give {most} at most"
        )
    return found
