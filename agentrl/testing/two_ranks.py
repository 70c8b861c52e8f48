"""`two_ranks`: the ranks of a trainer in two processes, which is all that most faults need."""

from collections.abc import Callable
from typing import TypeVar

from agentrl.trainer.parallel_dims import ParallelDims, Ranks
from agentrl.trainer.rank_group import PRELOAD, start_ranks
from agentrl.workers.executors import Executor, Processes
from agentrl.workers.group import WorkerGroup

H = TypeVar("H")


def two_ranks(
    make: Callable[[Ranks], H], *, executor: Executor | None = None, timeout_s: float = 30.0
) -> WorkerGroup[H]:
    """Two ranks that have met, on the CPU with a thread each; they end with the `with` block.

    Args:
        make: called on each rank; gives what the group's calls get first. It has to be importable.
        executor: where they are; processes of this machine if not given.
        timeout_s: how long one waits for the other.
    """
    layout = ParallelDims(size=2, timeout_s=timeout_s)
    return start_ranks(executor or Processes(PRELOAD), layout, make, threads=1)
