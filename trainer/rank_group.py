"""The ranks of a trainer as a worker group: they meet, and errors say which one was first.

seats ─ open_store on the first ─▶ address ─ join ─▶ ranks, each with its `Ranks` ─ make ─▶ H
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import psutil
import torch
from torch import distributed
from torch.distributed.distributed_c10d import Store

from agentrl.errors import RunError
from agentrl.trainer.device import OutOfMemory, is_out_of_memory, resolve_device
from agentrl.trainer.parallel_dims import ParallelDims, Ranks, join, make_store
from agentrl.workers.calls import WorkerDied
from agentrl.workers.dispatch import CallArguments, on_first
from agentrl.workers.executors import Executor, Seat
from agentrl.workers.group import WorkerGroup

H = TypeVar("H")

PRELOAD: Final = ("agentrl.trainer.trainer", __name__)
"""What every rank imports."""
_AFTER: Final = "all ranks were stopped: resume the run from its last checkpoint"


class PeerLost(RunError):
    """A rank waited in vain for another."""


def start_ranks(
    executor: Executor,
    layout: ParallelDims,
    make: Callable[[Ranks], H],
    *,
    device: str = "cpu",
    threads: int = 0,
) -> WorkerGroup[H]:
    """Start workers, let them meet, and let each make what its calls work with.

    Args:
        executor: where they are.
        layout: how many, and how they are arranged.
        make: called on each rank.
        device: as `resolve_device` takes it.
        threads: CPU threads of each; 0 shares the cores out.
    """

    def explain(name: str, errors: Sequence[BaseException | None]) -> BaseException:
        return choose_causing_error(name, errors, layout.timeout_s)

    workers = executor.start(layout.size)
    group = WorkerGroup.seated(workers, explain=explain, run_call=_run_rank_call, noun="rank")
    try:
        address = group.ask(on_first(_open_store), layout.timeout_s)
        return group.hold(_join_ranks, layout, address, device, threads).hold(make)
    except BaseException:
        group.close()
        raise


def choose_causing_error(
    name: str, errors: Sequence[BaseException | None], timeout_s: float
) -> BaseException:
    """The error that the others follow from: an end, then any error but a lost peer."""
    found = [(rank, error) for rank, error in enumerate(errors) if error is not None]
    late_peers, ends = PeerLost | TimeoutError, WorkerDied
    rank, error = min(
        found, key=lambda item: isinstance(item[1], late_peers) - isinstance(item[1], ends)
    )
    who = f"rank {rank} of {len(errors)}"
    if isinstance(error, WorkerDied):
        hint = ", perhaps since memory ran out" if "SIGKILL" in str(error) else ""
        return RunError(f"{who} ended during {name} ({error}{hint}); {_AFTER}")
    if isinstance(error, OutOfMemory):
        return OutOfMemory(f"{who}, during {name}: {error}")
    if isinstance(error, late_peers):
        late = [str(i) for i, e in enumerate(errors) if e is None]
        waits = f"; rank {', '.join(late)} did not answer" if late else ""
        return RunError(
            f"{who} waited for the others during {name} for up to {timeout_s:g} s "
            f"(trainer.rank_timeout_s) in vain{waits}; {_AFTER}"
        )
    return error


# What runs where the ranks are.

_stores: list[Store] = []
"""Of this process; it ends with it."""


def _open_store(seat: Seat, timeout_s: float) -> tuple[str, int]:
    """Where the ranks meet: at the first one, at whatever port is free."""
    store = make_store(seat.host, 0, timeout_s, is_first=True)
    _stores.append(store)
    return seat.host, int(store.port)


def _join_ranks(
    seat: Seat, layout: ParallelDims, address: tuple[str, int], device: str, threads: int
) -> Ranks:
    torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) // layout.size))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _interface_of(seat.host))
    place = resolve_device(device, seat.device)
    return join(seat.number, layout, device=place, address=address)


def _interface_of(host: str) -> str:
    """The network interface that has the address."""
    found = (
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(one.address == host for one in addresses)
    )
    return next(found, "lo")


class _Function(Protocol):
    def __call__(self, held: object, /, *args: Any, **options: Any) -> Any: ...


def _run_rank_call(fn: _Function, held: object, given: CallArguments) -> object:
    try:
        return fn(held, *given.args, **given.options)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"the trainer ran out of memory ({(str(error) or 'no memory').splitlines()[0]}); "
                "resume from the last checkpoint with a lower trainer.token_budget, more "
                "trainer.ranks or trainer.activation_checkpointing"
            ) from error
        if isinstance(error, distributed.DistError) or "gloo" in str(error).lower():
            raise PeerLost(str(error).splitlines()[0]) from error
        raise
