"""A Ray cluster on this machine, of several nodes, for tests."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# ray is typed in part only.

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from agentrl.extras import require


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A running cluster."""

    address: str
    cluster: Any
    """The `ray.cluster_utils.Cluster`, for tests that add or kill a node."""


@contextmanager
def local_ray(nodes: int = 2, cpus: int = 2) -> Generator[LocalRay]:
    """So many raylets with so many CPUs each, in processes of this machine; ended with the block.

    The CPUs are what Ray counts: they need not be there.
    """
    require("local_ray", "ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(
        initialize_head=True, head_node_args={"num_cpus": cpus, "include_dashboard": False}
    )
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=cpus)
        yield LocalRay(cluster.address, cluster)
    finally:
        import_module("ray").shutdown()
        cluster.shutdown()
