"""`Ranks`: which of how many processes this is, how they are arranged, and how they exchange.

    6 ranks, replicate 2:  rows hold different shards, columns hold copies    0 1 2
                           of the same shard                                  3 4 5
    6 ranks, sequence 2:   neighbours hold the pieces of the same rows        0 1 | 2 3 | 4 5

Every group has the same deadline: a rank that is late or gone is an error, never a wait without
end. All collectives of a group are called in the same order by one thread.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# torch is typed in part only.

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed
from torch.distributed import ProcessGroup, TCPStore  # type: ignore[attr-defined]  # it is there
from torch.distributed.device_mesh import DeviceMesh

from agentrl.trainer.device import CPU, backend, use

F = TypeVar("F", np.float32, np.float64)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelDims:
    """How many ranks there are and how they share the work."""

    size: int = 1
    replicate: int = 1
    """Copies of the weights; each copy is sharded over `size / replicate` ranks."""
    sequence: int = 1
    """Ranks that share the tokens of the same rows."""
    timeout_s: float = 600.0
    """How long one rank waits for another in one exchange."""

    @property
    def data(self) -> int:
        """Ranks, or groups of them, that have rows of their own."""
        return self.size // self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """One process among its peers."""

    rank: int = 0
    layout: ParallelDims = ParallelDims()
    device: torch.device = CPU
    mesh: DeviceMesh | None = None
    """What weights are sharded over, with a dimension of copies before it if there are any."""
    sequence: ProcessGroup | None = None
    """The ranks that share this rank's rows."""
    saving: ProcessGroup | None = None
    """All ranks, for the thread that writes checkpoints: it must not meet the others' order."""

    @property
    def size(self) -> int:
        """All processes."""
        return self.layout.size

    @property
    def data_rank(self) -> int:
        """Which share of the rows is this rank's."""
        return self.rank // self.layout.sequence

    @property
    def sequence_rank(self) -> int:
        """Which piece of its rows' tokens is this rank's."""
        return self.rank % self.layout.sequence

    def sum_(self, values: NDArray[F]) -> NDArray[F]:
        """The sums over all ranks: the same bits on each of them."""
        if self.size > 1:
            distributed.all_reduce(torch.from_numpy(values))
        return values

    def gather(self, value: T) -> list[T]:
        """What each rank has, in their order, on all of them."""
        if self.size == 1:
            return [value]
        found: list[T | None] = [None] * self.size
        distributed.all_gather_object(found, value)
        return cast("list[T]", found)

    def agree(self, fault: str | None) -> str | None:
        """The first fault that a rank has, on all of them; waits for all. For the saving thread."""
        if self.size == 1:
            return fault
        faults: list[str | None] = [None] * self.size
        distributed.all_gather_object(faults, fault, group=self.saving)
        return next((found for found in faults if found is not None), None)

    def leave(self) -> None:
        """End the exchange; a second call does nothing."""
        if self.mesh is not None and distributed.is_initialized():
            distributed.destroy_process_group()


SINGLE = Ranks()
"""One process, without peers or groups."""


def make_store(host: str, port: int, timeout_s: float, *, is_first: bool) -> "TCPStore":
    """Where ranks meet: the first opens it, at any free port if `port` is 0."""
    return TCPStore(
        host,
        port,
        is_master=is_first,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )


def join(
    rank: int, layout: ParallelDims, *, device: torch.device, address: tuple[str, int]
) -> Ranks:
    """Meet the other ranks at the store of the first one; every rank calls this once."""
    use(device)
    distributed.init_process_group(
        backend(device),
        store=make_store(*address, layout.timeout_s, is_first=False),
        rank=rank,
        world_size=layout.size,
        timeout=timedelta(seconds=layout.timeout_s),
    )
    return arrange(rank, layout, device)


def arrange(rank: int, layout: ParallelDims, device: torch.device) -> Ranks:
    """The groups of a layout, among processes that have met; all of them call this alike."""
    timeout = timedelta(seconds=layout.timeout_s)
    kinds = backend(device)

    def group(members: list[int], kind: str = kinds) -> ProcessGroup:
        return cast(ProcessGroup, distributed.new_group(members, timeout=timeout, backend=kind))

    # Every rank makes every group, in this order; its own is the one that it is a member of.
    everyone = list(range(layout.size))
    saving = group(everyone, "gloo")
    sequence = None
    for block in torch.arange(layout.size).view(-1, layout.sequence).tolist():
        made = group(block) if layout.sequence > 1 else None
        sequence = made if rank in block else sequence
    return Ranks(
        rank=rank,
        layout=layout,
        device=device,
        mesh=_make_device_mesh(rank, layout, device, group),
        sequence=sequence,
        saving=saving,
    )


def _make_device_mesh(
    rank: int,
    layout: ParallelDims,
    device: torch.device,
    group: Callable[[list[int]], ProcessGroup],
) -> DeviceMesh:
    """Made from groups, since those that a mesh makes itself have no deadline of ours."""
    table = torch.arange(layout.size).view(layout.replicate, -1)
    shards = [group(row) for row in table.tolist()]
    mine = shards[rank // table.shape[1]]
    if layout.replicate == 1:
        return DeviceMesh.from_group(mine, device.type, mesh_dim_names=("shard",))
    copies = [group(column) for column in table.T.tolist()]
    return DeviceMesh.from_group(
        [copies[rank % table.shape[1]], mine],
        device.type,
        mesh=table,
        mesh_dim_names=("replicate", "shard"),
    )
