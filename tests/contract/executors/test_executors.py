"""What a worker group promises, wherever its workers are."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psutil
import pytest

from agentrl.errors import ConfigError, RunError
from agentrl.testing.local_ray import LocalRay
from agentrl.workers.dispatch import by_replica, gathered, on_all, on_first, streamed, summed
from agentrl.workers.executors import Executor, Inline, Processes, Seat
from agentrl.workers.group import WorkerGroup

DEADLINE_S = 2.0
Start = Callable[[int], "WorkerGroup[Shelf]"]


@dataclass
class Shelf:
    seat: Seat
    kept: list[str] = field(default_factory=list[str])

    @on_all
    def keep(self, item: str) -> str:
        self.kept.append(item)
        return f"{self.seat.number} has {item}"

    @on_first
    def add_to_first(self, item: str) -> int:
        self.kept.append(item)
        return len(self.kept)

    @gathered
    def list_kept(self) -> tuple[int, list[str]]:
        return self.seat.number, self.kept

    @by_replica
    def keep_own(self, item: str, times: int) -> str:
        self.kept += [item] * times
        return item

    @summed
    def count(self) -> int:
        return len(self.kept)

    @streamed
    def each(self, most: int) -> Iterator[tuple[int, int]]:
        for i in range(most):
            yield self.seat.number, i

    @gathered
    def take(self, seconds: float) -> tuple[float, float]:
        began = time.monotonic()
        time.sleep(seconds)
        return began, time.monotonic()

    @gathered
    def refuse(self, number: int | None) -> int:
        if number in (None, self.seat.number):
            raise ConfigError("not here")
        return self.seat.number

    @gathered
    def end(self, blow: str) -> None:
        if self.seat.number == 1:
            os.kill(os.getpid(), signal.Signals[blow])
        time.sleep(60)

    @gathered
    def pid(self) -> int:
        return os.getpid()

    @on_all
    def size_of(self, data: bytes) -> int:
        return len(data)

    def undeclared(self) -> None: ...


@pytest.fixture(params=["inline", "processes", "ray"])
def executor(request: pytest.FixtureRequest) -> Executor:
    match request.param:
        case "inline":
            return Inline()
        case "processes":
            return Processes(deadline_s=DEADLINE_S)
        case _:
            from agentrl.orchestration.ray_workers import RayActors

            cluster: LocalRay = request.getfixturevalue("two_raylets")
            return RayActors("contract", cluster.address, cpus=0.5, deadline_s=DEADLINE_S)


@pytest.fixture
def group(executor: Executor) -> Iterator["WorkerGroup[Shelf]"]:
    with WorkerGroup.seated(executor.start(3)).hold(Shelf) as found:
        yield found


def test_each_method_goes_the_way_that_it_declares(group: "WorkerGroup[Shelf]") -> None:
    assert group.ask(Shelf.keep, "pen") == "0 has pen"
    assert group.ask(Shelf.add_to_first, item="ink") == 2
    assert group.ask(Shelf.list_kept) == [(0, ["pen", "ink"]), (1, ["pen"]), (2, ["pen"])]
    assert group.ask(Shelf.keep_own, ["a", "b", "c"], times=[0, 1, 2]) == ["a", "b", "c"]
    assert group.ask(Shelf.count) == 7
    assert group.ask(Shelf.keep_own, ["z"], times=[0]) == ["z", "z", "z"]
    assert list(group.stream(Shelf.each, 3)) == [(0, 0), (0, 1), (0, 2)]
    assert list(group.stream(Shelf.each, 0)) == []
    before = group.num_bytes
    assert group.ask(Shelf.size_of, b"x" * 3_000_000) == 3_000_000
    assert group.num_bytes == before == 0 or 3_000_000 < group.num_bytes - before < 9_100_000
    with pytest.raises(ConfigError, match="argument 0: got 2 items, expected one for each replica"):
        group.ask(Shelf.keep_own, ["a", "b"], times=[0, 1, 2])
    with pytest.raises(ConfigError, match=r"undeclared says not how a group calls it"):
        group.ask(Shelf.undeclared)  # type: ignore[arg-type]


def test_calls_are_futures_and_one_is_done_after_the_other(group: "WorkerGroup[Shelf]") -> None:
    began = time.monotonic()
    first, second = group.call(Shelf.take, 0.3), group.call(Shelf.take, 0.0)
    assert time.monotonic() - began < 0.3
    assert max(end for _, end in first.result()) <= min(start for start, _ in second.result())


def test_a_call_of_which_nobody_wants_the_result_is_done_all_the_same(
    group: "WorkerGroup[Shelf]", caplog: pytest.LogCaptureFixture
) -> None:
    group.call(Shelf.take, 0.2)
    assert group.call(Shelf.keep, "pen").cancel()
    assert group.ask(Shelf.count) == 3
    assert not caplog.records


def test_what_all_refuse_alike_is_said_once_and_they_go_on(group: "WorkerGroup[Shelf]") -> None:
    with pytest.raises(ConfigError, match="not here"):
        group.ask(Shelf.refuse, None)
    assert group.ask(Shelf.count) == 0


def test_one_that_fails_alone_ends_all(group: "WorkerGroup[Shelf]") -> None:
    pids = [pid for pid in group.ask(Shelf.pid) if pid != os.getpid()]
    with pytest.raises(ConfigError, match="not here") as caught:
        group.ask(Shelf.refuse, 1)
    assert "raised by worker 1 of 3 during refuse" in caught.value.__notes__[-1]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(RunError, match="stopped after an earlier error"):
        group.ask(Shelf.count)


@pytest.mark.parametrize("blow", ["SIGKILL", "SIGSTOP"])
def test_a_worker_that_dies_or_stands_still_is_named_and_all_end(
    executor: Executor, blow: str
) -> None:
    if isinstance(executor, Inline):
        pytest.skip("it dies with this process")
    group = WorkerGroup.seated(executor.start(2)).hold(Shelf)
    pids = group.ask(Shelf.pid)
    began = time.monotonic()
    with pytest.raises(RunError, match=r"^worker 1 of 2 ended during end \(") as caught:
        group.ask(Shelf.end, blow)
    if blow == "SIGSTOP":
        assert "stood still for 2 s and was killed" in str(caught.value)
    assert time.monotonic() - began < 30
    end = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_what_cannot_travel_is_refused_and_they_go_on(
    executor: Executor, group: "WorkerGroup[Shelf]"
) -> None:
    if isinstance(executor, Inline):
        pytest.skip("nothing travels")
    with pytest.raises(ConfigError, match="cannot be pickled"):
        group.ask(Shelf.size_of, threading.Lock())  # type: ignore[arg-type]
    assert group.ask(Shelf.count) == 0


def test_interrupted_in_a_call_all_end(executor: Executor, group: "WorkerGroup[Shelf]") -> None:
    if isinstance(executor, Inline):
        pytest.skip("it is this process's own thread")
    future = group.call(Shelf.take, 60.0)
    time.sleep(0.5)
    began = time.monotonic()
    group.interrupt()
    with pytest.raises(RunError, match=r"worker \d of 3 ended during take"):
        future.result(timeout=30)
    assert time.monotonic() - began < 20
    assert not group.alive
