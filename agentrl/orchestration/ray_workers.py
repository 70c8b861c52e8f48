"""The third executor: each worker is an actor of a Ray cluster.

What many workers get is put into the cluster once and read by them from there.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# ray is typed in part only.

import asyncio
import contextlib
import os
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.errors import ConfigError
from agentrl.orchestration.ray_cluster import (
    check_fits,
    check_versions,
    connect,
    ray,
    reserve,
    versions,
    watch_node,
)
from agentrl.workers.calls import WorkerDied, value_of
from agentrl.workers.executors import Seat, WorkerCall
from agentrl.workers.worker import run_pickled_call

_LOOKS: Final = 4
"""In a row, a process has to be found stopped."""
_INLINE_BYTES: Final = 1 << 16
"""What is larger is put into the cluster's store."""
_END_S: Final = 15.0


class _Actor:
    """What Ray starts: a seat, and calls by what is held there."""

    def __init__(self, number: int, size: int) -> None:
        self._held: list[object] = [Seat(number, size, ray.util.get_node_ip_address())]

    def introduce(self) -> tuple[int, str, str, dict[str, str]]:
        """Its process, its node, that one's address, and versions."""
        node = ray.get_runtime_context().get_node_id()
        return os.getpid(), node, ray.util.get_node_ip_address(), versions()

    def run(self, pickled: bytes) -> bytes:
        """A call."""
        return run_pickled_call(pickled, self._held)


@dataclass(frozen=True, slots=True)
class RayActors:
    """Workers as actors, each in a place of its own."""

    name: str
    """Of the run; its places are named so."""
    address: str = "auto"
    cpus: float = 1.0
    """Of each worker."""
    gpus: float = 0.0
    deadline_s: float = 30.0
    """A worker that was stopped, or a node that did not answer, for so long is lost."""

    @property
    def bundle(self) -> dict[str, float]:
        """What each worker asks the cluster for."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def check(self, size: int) -> None:
        """Raise ConfigError if so many cannot be started; `local` begins with the run."""
        if self.address == "local":
            return
        is_joined_here = connect(self.address, self.name)
        try:
            check_fits(self.bundle, size)
        finally:
            if is_joined_here:
                ray.shutdown()

    def start(self, size: int) -> "RayWorkers":
        """So many actors, whose versions are those of this process."""
        is_joined_here = connect(self.address, self.name)
        group: PlacementGroup | None = None
        try:
            # The cluster may still have what an earlier group of the run had.
            group = reserve(f"agentrl-{self.name}-{uuid4().hex[:6]}", self.bundle, size)
            actors = [
                ray.remote(_Actor)
                .options(
                    num_cpus=self.cpus,
                    num_gpus=self.gpus,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
                )
                .remote(number, size)
                for number in range(size)
            ]
            found = ray.get([actor.introduce.remote() for actor in actors])
            workers = RayWorkers(actors, group, is_joined_here, self.deadline_s)
            for pid, node, host, theirs in found:
                check_versions(theirs, host)
                workers.add_place(pid, node, host)
            workers.wait_for_watches()
        except BaseException as error:
            if group is not None:
                remove_placement_group(group)
            if is_joined_here:
                ray.shutdown()
            if isinstance(error, RayTaskError | RayActorError):
                reason = str(error).strip().splitlines()[-1]
                raise ConfigError(f"a worker of the cluster cannot start: {reason}") from error
            raise
        return workers


@dataclass
class RayWorkers:
    """They end with the driver, however that ends: Ray sees to it."""

    actors: list[Any]
    group: PlacementGroup
    is_joined_here: bool
    deadline_s: float
    places: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """Process, node and address of each."""
    _watches: dict[str, Any] = field(default_factory=dict[str, Any])
    _shared: tuple[WorkerCall, Any] | None = None
    """The last large call, and where the cluster has it."""

    def __len__(self) -> int:
        return len(self.actors)

    def add_place(self, pid: int, node: str, host: str) -> None:
        """Where the next worker is."""
        self.places.append((pid, node, host))
        if node not in self._watches:
            self._watches[node] = watch_node(node)

    def wait_for_watches(self) -> None:
        """From now on their answers have a deadline."""
        pids = {node: pid for pid, node, _ in self.places}
        ray.get([watch.look.remote(pids[node]) for node, watch in self._watches.items()])

    async def exchange(self, number: int, call: WorkerCall) -> Any:
        """Send it and wait for the reply, looking at the process from time to time."""
        reply = asyncio.ensure_future(self._send(number, call))
        try:
            return value_of(await self._wait_for_reply(number, reply), call.fn)
        except RayError as error:
            raise WorkerDied(await self._describe_end(number)) from error
        finally:
            reply.cancel()

    async def _wait_for_reply(self, number: int, reply: "asyncio.Future[bytes]") -> bytes:
        looks = 0
        while True:
            done, _ = await asyncio.wait([reply], timeout=self.deadline_s / (_LOOKS + 1))
            if done:
                return reply.result()
            looks = looks + 1 if await self._look(number) == "stopped" else 0
            if looks == _LOOKS:
                self._watches[self.places[number][1]].end.remote([self.places[number][0]])
                raise WorkerDied(
                    f"the process stood still for {self.deadline_s:g} s and was killed"
                )

    async def _send(self, number: int, call: WorkerCall) -> bytes:
        pickled: Any = call.pickled
        if len(pickled) > _INLINE_BYTES:
            if self._shared is None or self._shared[0] is not call:
                self._shared = call, ray.put(pickled)
            pickled = self._shared[1]
        reply: bytes = await self.actors[number].run.remote(pickled)
        return reply

    async def _look(self, number: int) -> str:
        pid, node, host = self.places[number]
        try:
            async with asyncio.timeout(self.deadline_s):
                found: str = await self._watches[node].look.remote(pid)
                return found
        except (TimeoutError, RayError) as error:
            raise WorkerDied(f"the node {host} is gone or does not answer") from error

    async def _describe_end(self, number: int) -> str:
        pid, node, host = self.places[number]
        said = ""
        with contextlib.suppress(TimeoutError, RayError):
            async with asyncio.timeout(self.deadline_s):
                said = await self._watches[node].tail.remote(pid)
        end = f"its process {pid} on {host} is gone"
        return f"{end}; its last lines:\n{said}" if said else end

    def close(self) -> None:
        """End the actors, wait until their processes are gone and give their places back."""
        actors, self.actors = self.actors, []
        if not actors or not ray.is_initialized():
            return
        for actor in actors:
            ray.kill(actor)
        ends = [
            watch.end.remote([pid for pid, at, _ in self.places if at == node])
            for node, watch in self._watches.items()
        ]
        with contextlib.suppress(RayError):
            ray.wait(ends, num_returns=len(ends), timeout=min(_END_S, self.deadline_s))
        for watch in self._watches.values():
            ray.kill(watch)
        remove_placement_group(self.group)
        if self.is_joined_here:
            ray.shutdown()
