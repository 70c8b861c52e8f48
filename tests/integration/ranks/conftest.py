from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from agentrl.trainer.parallel_dims import ParallelDims, Ranks
from agentrl.trainer.rank_group import PRELOAD, start_ranks
from agentrl.workers.dispatch import gathered
from agentrl.workers.executors import Processes
from agentrl.workers.group import WorkerGroup

Group = Callable[..., WorkerGroup[Ranks]]


@gathered
def held(ranks: Ranks) -> Ranks:
    """What a rank of the tests holds: which one it is."""
    return ranks


@pytest.fixture(scope="session")
def group() -> Iterator[Group]:
    """Groups of ranks by their layout, each started once."""
    started: dict[ParallelDims, WorkerGroup[Ranks]] = {}
    with ExitStack() as stack:

        def get(size: int, **options: int) -> WorkerGroup[Ranks]:
            layout = ParallelDims(size=size, timeout_s=30, **options)
            if layout not in started or not started[layout].alive:
                ranks = start_ranks(Processes(PRELOAD), layout, held, threads=1)
                started[layout] = stack.enter_context(ranks)
            return started[layout]

        yield get


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = __file__.rpartition("/")[0]
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.ranks)
            item.add_marker(pytest.mark.timeout(180))  # the processes share few cores
