"""The third executor: each worker is an actor of a Ray cluster.

What many workers get is put into the cluster once and read by them from there.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# ray is typed in part only.

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from ray.exceptions import RayActorError, RayError, RayTaskError, RuntimeEnvSetupError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from agentrl.errors import ConfigError
from agentrl.orchestration.ray_cluster import (
    check_code,
    check_fits,
    check_versions,
    connect,
    nodes_with_cpus,
    ray,
    reach_sent_code,
    reserve,
    said_in_one_line,
    versions,
    wait_for,
    watch_node,
)
from agentrl.rollout.player import PickledEnvs, open_envs
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
        reach_sent_code()
        self._held: list[object] = [Seat(number, size, ray.util.get_node_ip_address())]

    def introduce(self) -> tuple[int, str, str, dict[str, str]]:
        """Its process, its node, that one's address, and versions."""
        node = ray.get_runtime_context().get_node_id()
        return os.getpid(), node, ray.util.get_node_ip_address(), versions()

    def run(self, pickled: bytes) -> bytes:
        """A call."""
        return run_pickled_call(pickled, self._held)


class _Player(_Actor):
    """One that plays episodes; processes are called by it."""


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
    code: Sequence[str] = ()
    """Folders and files that the nodes get."""

    @property
    def bundle(self) -> dict[str, float]:
        """What each worker asks the cluster for."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def check(self, size: int) -> None:
        """Raise ConfigError if so many cannot be started; `local` begins with the run."""
        check_code(self.code)
        if self.address == "local":
            return
        is_joined_here = connect(self.address, self.name, self.code)
        try:
            check_fits(self.bundle, size)
        finally:
            if is_joined_here:
                ray.shutdown()

    def start(self, size: int) -> "RayWorkers":
        """So many actors, whose versions are those of this process."""
        is_joined_here = connect(self.address, self.name, self.code)
        group: PlacementGroup | None = None
        try:
            # The cluster may still have what an earlier group of the run had.
            group = reserve(f"agentrl-{self.name}-{uuid4().hex[:6]}", self.bundle, size)
        except BaseException:
            if is_joined_here:
                ray.shutdown()
            raise
        found = group

        def make(number: int, is_again: bool) -> Any:
            place = PlacementGroupSchedulingStrategy(found, number)
            kind = ray.remote(_Actor).options(
                num_cpus=self.cpus, num_gpus=self.gpus, scheduling_strategy=place
            )
            return kind.remote(number, size)

        workers = RayWorkers(make, size, group, is_joined_here, self.deadline_s)
        workers.begin()
        return workers


@dataclass(frozen=True, slots=True)
class RayPlayers:
    """Workers as actors that take no places of others: as many as there are on each node."""

    name: str
    address: str
    deadline_s: float
    code: Sequence[str] = ()

    def check(self, envs: PickledEnvs, size: int | None) -> None:
        """Make the environments once on each node that would play them.

        Raises:
            ConfigError: one cannot be made there, or a node has other versions.
        """
        if self.address == "local":  # it begins with the run, and has what this process has
            return
        is_joined_here = connect(self.address, self.name, self.code)
        try:
            trial = ray.remote(_try_envs)
            tried = [
                trial.options(
                    num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
                ).remote(envs)
                for node in dict.fromkeys(_spread(size))
            ]
            wait_for(dict(enumerate(tried)))
            for theirs, host, error in ray.get(tried):
                check_versions(theirs, host)
                if error is not None:
                    raise error
        except (RayTaskError, RayActorError, RuntimeEnvSetupError) as error:
            raise _cannot_start(error) from error
        finally:
            if is_joined_here:
                ray.shutdown()

    def start(self, size: int | None) -> "RayWorkers":
        """So many, on nodes without accelerators first; None: one on each node.

        Raises:
            ConfigError: no node has a CPU.
        """
        is_joined_here = connect(self.address, self.name, self.code)
        nodes = _spread(size)

        def make(number: int, is_again: bool) -> Any:
            # At first on its node and no other; that may be what it has died with.
            place = NodeAffinitySchedulingStrategy(nodes[number], soft=is_again)
            kind = ray.remote(_Player).options(num_cpus=0, scheduling_strategy=place)
            return kind.remote(number, len(nodes))

        workers = RayWorkers(make, len(nodes), None, is_joined_here, self.deadline_s)
        workers.begin()
        return workers


def _spread(size: int | None) -> list[str]:
    """A node for each of so many, in turn; None: one for each node."""
    nodes = [str(node["NodeID"]) for node in nodes_with_cpus()]
    return [nodes[number % len(nodes)] for number in range(size or len(nodes))]


def _try_envs(envs: PickledEnvs) -> tuple[dict[str, str], str, ConfigError | None]:
    """On a node: its versions and address, and what is wrong with the environments there."""
    host = str(ray.util.get_node_ip_address())
    reach_sent_code()
    try:
        open_envs(envs, host)
    except ConfigError as error:
        return versions(), host, ConfigError(str(error))  # without a cause that may not travel
    return versions(), host, None


def _cannot_start(error: RayError) -> ConfigError:
    if isinstance(error, RuntimeEnvSetupError):
        return ConfigError(f"ray.code: a node cannot take it ({said_in_one_line(error)})")
    reason = str(error).strip().splitlines()[-1]
    return ConfigError(f"a worker of the cluster cannot start: {reason}")


@dataclass
class RayWorkers:
    """They end with the driver, however that ends: Ray sees to it."""

    make: Callable[[int, bool], Any]
    """Starts the actor of a number, for the first time or again."""
    size: int
    group: PlacementGroup | None
    is_joined_here: bool
    deadline_s: float
    actors: list[Any] = field(default_factory=list[Any])
    places: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """Process, node and address of each."""
    _watches: dict[str, Any] = field(default_factory=dict[str, Any])
    _shared: tuple[WorkerCall, Any] | None = None
    """The last large call, and where the cluster has it."""
    _is_closed: bool = False

    def __len__(self) -> int:
        return self.size

    @property
    def home(self) -> str:
        """The address by which they reach this process."""
        return str(ray.util.get_node_ip_address())

    def describe(self, number: int) -> str:
        """Which process it is, and where."""
        pid, node, host = self.places[number]
        return f"process {pid} on {host}, node {node[:8]}"

    def begin(self) -> None:
        """Start all of them; from then on answers of the watches have a deadline.

        Raises:
            ConfigError: one cannot start, or has other versions.
            RunError: one does not start.
        """
        try:
            self.actors = [self.make(number, False) for number in range(self.size)]
            self.places = self._meet(range(self.size))
        except BaseException:
            self.close()
            raise

    async def replace(self, number: int) -> None:
        """Start another one in the place of one that is gone."""
        await asyncio.to_thread(self._replace, number)

    def _replace(self, number: int) -> None:
        ray.kill(self.actors[number])
        pid, node, _ = self.places[number]
        if (watch := self._watches.get(node)) is not None:
            try:
                ray.get(watch.end.remote([pid]), timeout=self.deadline_s)
            except RayError:  # the node is gone, or its watch is
                self._watches.pop(node, None)
        self.actors[number] = self.make(number, True)
        self.places[number] = self._meet([number])[0]

    def _meet(self, numbers: Sequence[int]) -> list[tuple[int, str, str]]:
        """Where these are, once they have come up, with a watch on each of their nodes."""
        said = {number: self.actors[number].introduce.remote() for number in numbers}
        wait_for(said)
        try:
            found = ray.get([*said.values()])
        except (RayTaskError, RayActorError, RuntimeEnvSetupError) as error:
            raise _cannot_start(error) from error
        places: list[tuple[int, str, str]] = []
        for pid, node, host, theirs in found:
            check_versions(theirs, host)
            if node not in self._watches:
                self._watches[node] = watch_node(node)
            places.append((pid, node, host))
        ray.get([self._watches[node].look.remote(pid) for pid, node, _ in places])
        return places

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
        except (TimeoutError, RayError, KeyError) as error:
            raise WorkerDied(f"the node {host} is gone or does not answer") from error

    async def _describe_end(self, number: int) -> str:
        pid, node, host = self.places[number]
        said = ""
        with contextlib.suppress(TimeoutError, RayError, KeyError):
            async with asyncio.timeout(self.deadline_s):
                said = await self._watches[node].tail.remote(pid)
        end = f"its process {pid} on {host} is gone"
        return f"{end}; its last lines:\n{said}" if said else end

    def close(self) -> None:
        """End the actors, wait until their processes are gone and give their places back."""
        if self._is_closed or not ray.is_initialized():
            return
        self._is_closed = True
        for actor in self.actors:
            ray.kill(actor)
        ends = [
            watch.end.remote([pid for pid, at, _ in self.places if at == node])
            for node, watch in self._watches.items()
        ]
        with contextlib.suppress(RayError):
            ray.wait(ends, num_returns=len(ends), timeout=min(_END_S, self.deadline_s))
        for watch in self._watches.values():
            ray.kill(watch)
        if self.group is not None:
            remove_placement_group(self.group)
        if self.is_joined_here:
            ray.shutdown()
