"""What a Ray cluster adds: nodes that die, places that others hold, drivers that are killed."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# ray is typed in part only.

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from agentrl.errors import ConfigError, RunError
from agentrl.testing.local_ray import LocalRay
from agentrl.workers.dispatch import gathered
from agentrl.workers.executors import Seat
from agentrl.workers.group import WorkerGroup

DRIVER = """
import sys, time
from agentrl.orchestration.ray_workers import RayActors
workers = RayActors("killed", sys.argv[1]).start(2)
print(*[pid for pid, _, _ in workers.places], flush=True)
time.sleep(100)
"""


@gathered
def pause(seat: Seat, seconds: float) -> int:
    time.sleep(seconds)
    return seat.number


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def joined(two_raylets: LocalRay) -> Iterator[Any]:
    """This process is part of the cluster, in a test's own namespace."""
    from agentrl.orchestration import ray_cluster

    ray_cluster.connect(two_raylets.address, "test")
    yield ray_cluster
    ray_cluster.ray.shutdown()


def start(cluster: LocalRay, size: int, **options: Any) -> "WorkerGroup[Seat]":
    from agentrl.orchestration.ray_workers import RayActors

    return WorkerGroup.seated(RayActors("nodes", cluster.address, **options).start(size))


def num_places(joined: Any) -> int:
    """Placement groups that are there."""
    from ray.util import placement_group_table

    table: dict[str, Any] = placement_group_table()
    return sum(group["state"] != "REMOVED" for group in table.values())


@pytest.mark.usefixtures("joined")
def test_a_node_that_is_killed_is_named_before_ray_knows(
    two_raylets: LocalRay, capfd: pytest.CaptureFixture[str]
) -> None:
    node = two_raylets.cluster.add_node(num_cpus=1)
    group = start(two_raylets, 3, deadline_s=2.0)
    future = group.call(pause, 60.0)
    time.sleep(0.5)
    began = time.monotonic()
    node.kill_raylet()
    with pytest.raises(RunError, match=r"ended during pause \(the node .* is gone or does not"):
        future.result()
    assert time.monotonic() - began < 20  # 2 s and 5 s for the others to speak, under load
    two_raylets.cluster.remove_node(node, allow_graceful=False)
    time.sleep(1.0)
    assert "raylet" not in capfd.readouterr().out


def test_what_is_waited_for_is_said(
    two_raylets: LocalRay,
    joined: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(joined, "_SAY_S", 0.4)
    monkeypatch.setattr(joined, "_PLACE_S", 1.0)
    wait_until(lambda: joined.ray.cluster_resources()["CPU"] == 2)  # the killed node is forgotten
    with start(two_raylets, 2):
        with caplog.at_level(logging.WARNING), pytest.raises(RunError, match="end what holds"):
            start(two_raylets, 2)
        assert " has waited 0 s for its places: free are 0 of 2 CPU" in caplog.text
    wait_until(lambda: num_places(joined) == 0)


def test_other_versions_on_a_node_are_named(
    two_raylets: LocalRay, joined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined, "versions", lambda: {"Python": "3.99.0", "agentrl": "7"})
    with pytest.raises(ConfigError, match=r"has Python 3\.1.* \(here 3\.99\.0\), agentrl .*here 7"):
        start(two_raylets, 1)
    wait_until(lambda: num_places(joined) == 0)


def test_nothing_of_a_driver_that_is_killed_stays(two_raylets: LocalRay, joined: Any) -> None:
    command = [sys.executable, "-c", DRIVER, two_raylets.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2
        assert num_places(joined) == 1
        driver.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    wait_until(lambda: num_places(joined) == 0)
