"""Calls into worker processes: results, time limits, deaths, and that nothing is left behind."""

import asyncio
import contextlib
import gc
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from agentrl.errors import ConfigError
from agentrl.workers import CallFailed, QueueTimeout, WorkerDied, WorkerPool, WorkerTimeout

GENEROUS_S = 20.0


def bare_pool(size: int, name: str, memory_bytes: int | None = None) -> WorkerPool:
    """A pool that starts fast, since its workers import nothing that they do not need."""
    return WorkerPool(size, name, memory_bytes=memory_bytes, preload=())


def census() -> set[int]:
    """All processes below this one, zombies too."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def hold_interpreter() -> int:
    return 9**9**9**9  # type: ignore[no-any-return]  # an integer, in theory


def stop(whom: str) -> None:
    """Let this process, or the one that forked it, stand still."""
    os.kill(os.getpid() if whom == "worker" else os.getppid(), signal.SIGSTOP)
    time.sleep(600)


def leave_child(seconds: int, *, escape: bool) -> int:
    command = ["setsid", "sleep", str(seconds)] if escape else ["sleep", str(seconds)]
    return subprocess.Popen(command).pid


def daemonize() -> int:
    """A process that leaves the group and the family, as a daemon does."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
        os.write(write, str(pid).encode())
        os._exit(0)
    return int(os.read(read, 100))


def leave_child_and_hang(path: Path) -> None:
    path.write_text(f"{leave_child(600, escape=True)} {daemonize()}")
    time.sleep(600)


async def wait_until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - the kernel sets no event
            await asyncio.sleep(0.01)


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    before = census()
    async with bare_pool(2, "test") as pool:
        yield pool
    assert census() == before


async def test_runs_in_another_process(pool: WorkerPool) -> None:
    assert await pool.call(math.gcd, 12, 18, timeout_s=GENEROUS_S) == 6
    assert await pool.call(os.getpid, timeout_s=GENEROUS_S) != os.getpid()


async def test_worker_is_kept_warm(pool: WorkerPool) -> None:
    pids = {await pool.call(os.getpid, timeout_s=GENEROUS_S) for _ in range(5)}
    assert len(pids) == 1


async def test_kill_at_timeout_leaves_siblings_alone(pool: WorkerPool) -> None:
    await asyncio.gather(*(pool.call(time.sleep, 0.05, timeout_s=GENEROUS_S) for _ in range(2)))
    warm = census()
    sibling = asyncio.create_task(pool.call(time.sleep, 0.4, timeout_s=GENEROUS_S))
    start = time.monotonic()
    with pytest.raises(WorkerTimeout, match=r"hold_interpreter ran longer than 0\.2 s"):
        await pool.call(hold_interpreter, timeout_s=0.2)
    assert time.monotonic() - start < 30
    assert len(warm - census()) == 1, "the killed worker is reaped when the error is raised"
    await sibling
    assert await pool.call(math.gcd, 4, 6, timeout_s=GENEROUS_S) == 2


async def test_many_calls_over_two_workers(pool: WorkerPool) -> None:
    calls = [pool.call(pow, n, 2, timeout_s=GENEROUS_S) for n in range(200)]
    assert await asyncio.gather(*calls) == [n * n for n in range(200)]
    pids = [pool.call(os.getpid, timeout_s=GENEROUS_S) for _ in range(200)]
    assert len(set(await asyncio.gather(*pids))) <= 2


async def test_waiting_is_not_running() -> None:
    async with bare_pool(1, "single") as pool:
        await pool.call(abs, 1, timeout_s=GENEROUS_S)
        await asyncio.gather(*(pool.call(time.sleep, 0.5, timeout_s=2.5) for _ in range(6)))


async def test_queue_limit_gives_the_place_up() -> None:
    async with bare_pool(1, "single") as pool:
        first = asyncio.create_task(pool.call(time.sleep, 2, timeout_s=GENEROUS_S))
        await asyncio.sleep(0)
        with pytest.raises(QueueTimeout, match="none of the 1 workers of pool single was free"):
            await pool.call(abs, 1, timeout_s=GENEROUS_S, queue_timeout_s=0.05)
        await first
        assert await pool.call(abs, -1, timeout_s=GENEROUS_S) == 1


async def test_cancelled_call_frees_its_worker() -> None:
    async with bare_pool(1, "single") as pool:
        await pool.call(abs, 1, timeout_s=GENEROUS_S)
        running = asyncio.create_task(pool.call(hold_interpreter, timeout_s=GENEROUS_S))
        waiting = asyncio.create_task(pool.call(abs, -2, timeout_s=GENEROUS_S))
        await asyncio.sleep(0.05)
        running.cancel()
        assert await waiting == 2
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_exit_and_signal_are_deaths(pool: WorkerPool) -> None:
    with pytest.raises(WorkerDied, match="exited with status 3"):
        await pool.call(os._exit, 3, timeout_s=GENEROUS_S)
    with pytest.raises(WorkerDied, match="killed by SIGSEGV"):
        await pool.call(signal.raise_signal, signal.SIGSEGV, timeout_s=GENEROUS_S)


async def test_deaths_with_a_queue_cost_no_places(pool: WorkerPool) -> None:
    deaths = [pool.call(os._exit, 1, timeout_s=GENEROUS_S) for _ in range(6)]
    found = await asyncio.gather(*deaths, return_exceptions=True)
    assert all(isinstance(error, WorkerDied) for error in found)
    naps = [pool.call(time.sleep, 0.01, timeout_s=GENEROUS_S) for _ in range(4)]
    await asyncio.gather(*naps)


async def test_worker_killed_while_idle_is_replaced(pool: WorkerPool) -> None:
    pid = await pool.call(os.getpid, timeout_s=GENEROUS_S)
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not psutil.pid_exists(pid))
    assert await pool.call(os.getpid, timeout_s=GENEROUS_S) != pid


async def test_killed_template_is_replaced(pool: WorkerPool) -> None:
    worker = await pool.call(os.getpid, timeout_s=GENEROUS_S)
    template = await pool.call(os.getppid, timeout_s=GENEROUS_S)
    os.kill(template, signal.SIGKILL)
    await wait_until(lambda: gone(worker))
    assert await pool.call(os.getppid, timeout_s=GENEROUS_S) != template


async def test_own_exception_comes_back_with_its_traceback(pool: WorkerPool) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        await pool.call(divmod, 1, 0, timeout_s=GENEROUS_S)
    assert "In the worker process:" in caught.value.__notes__[0]
    assert "ZeroDivisionError" in caught.value.__notes__[0]


class Awkward(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


def raise_awkward() -> None:
    raise Awkward("bread", "butter")


async def test_exception_that_cannot_travel(pool: WorkerPool) -> None:
    with pytest.raises(CallFailed, match=r"raise_awkward: .*Awkward: bread and butter") as caught:
        await pool.call(raise_awkward, timeout_s=GENEROUS_S)
    assert "raise Awkward" in caught.value.__notes__[0]


async def test_sys_exit_does_not_end_the_caller(pool: WorkerPool) -> None:
    with pytest.raises(CallFailed, match="SystemExit: 0"):
        await pool.call(sys.exit, 0, timeout_s=GENEROUS_S)


def shout(text: str) -> str:
    for _ in range(2000):
        print(text)
    sys.stdout.write("\x00" * 5000)
    os.write(1, b"raw bytes to descriptor one")
    return sys.stdin.read()


async def test_printing_breaks_nothing_and_input_is_empty(
    pool: WorkerPool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await pool.call(shout, "noise", timeout_s=GENEROUS_S) == ""
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("noise") == 2000


async def test_huge_result_is_refused(pool: WorkerPool) -> None:
    with pytest.raises(CallFailed, match=r"20000\d* bytes, more than the 8388608 that are allowed"):
        await pool.call(bytes, 20_000_000, timeout_s=GENEROUS_S)
    assert len(await pool.call(bytes, 8_000_000, timeout_s=GENEROUS_S)) == 8_000_000


async def test_large_arguments_arrive(pool: WorkerPool) -> None:
    assert await pool.call(len, b"x" * 30_000_000, timeout_s=GENEROUS_S) == 30_000_000


async def test_result_that_cannot_be_pickled(pool: WorkerPool) -> None:
    with pytest.raises(CallFailed, match="the result, a lock, cannot be pickled"):
        await pool.call(threading.Lock, timeout_s=GENEROUS_S)


async def test_arguments_that_cannot_be_pickled(pool: WorkerPool) -> None:
    with pytest.raises(ConfigError, match="id cannot run in another process"):
        await pool.call(id, threading.Lock(), timeout_s=GENEROUS_S)


@pytest.mark.parametrize("escape", [False, True])
async def test_child_left_by_a_call_goes_with_its_worker(pool: WorkerPool, escape: bool) -> None:
    worker = await pool.call(os.getpid, timeout_s=GENEROUS_S)

    def leave() -> int:
        return leave_child(600, escape=escape)

    child = await pool.call(leave, timeout_s=GENEROUS_S)
    assert await pool.call(os.getpid, timeout_s=GENEROUS_S) != worker
    await wait_until(lambda: not psutil.pid_exists(child))


async def test_daemon_left_by_a_call_goes_with_its_worker(pool: WorkerPool) -> None:
    daemon = await pool.call(daemonize, timeout_s=GENEROUS_S)
    await wait_until(lambda: not psutil.pid_exists(daemon))


async def test_timeout_takes_all_descendants(pool: WorkerPool, tmp_path: Path) -> None:
    await pool.call(abs, 1, timeout_s=GENEROUS_S)
    path = tmp_path / "pids"
    with pytest.raises(WorkerTimeout):
        await pool.call(leave_child_and_hang, path, timeout_s=5.0)
    pids = [int(pid) for pid in path.read_text().split()]
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_memory_limit() -> None:
    async with bare_pool(1, "small", memory_bytes=2 << 30) as pool:
        with pytest.raises(MemoryError):
            await pool.call(bytearray, 4 << 30, timeout_s=GENEROUS_S)
        assert await pool.call(abs, -1, timeout_s=GENEROUS_S) == 1


def test_no_core_files_no_foreign_descriptors_own_session() -> None:
    with Path("/dev/null").open() as secret, contextlib.closing(bare_pool(1, "test")) as pool:
        os.set_inheritable(secret.fileno(), True)

        def look() -> tuple[tuple[int, int], list[str], bool]:
            import resource

            files = [entry.name for entry in Path("/proc/self/fd").iterdir()]
            return resource.getrlimit(resource.RLIMIT_CORE), files, os.getsid(0) == os.getpid()

        core, files, own_session = asyncio.run(pool.call(look, timeout_s=GENEROUS_S))
    assert core == (0, 0)
    assert len(files) == 5, "0, 1, 2, the connection and the listing itself"
    assert own_session


def test_serves_one_event_loop_after_the_other_and_threads() -> None:
    with contextlib.closing(bare_pool(1, "test")) as pool:

        async def pid() -> int:
            return await pool.call(os.getpid, timeout_s=GENEROUS_S)

        found = [asyncio.run(pid()) for _ in range(3)]
        threads = [
            threading.Thread(target=lambda: found.append(asyncio.run(pid()))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 7
    assert len(set(found)) == 1


async def test_close_ends_running_and_waiting_calls() -> None:
    pool = bare_pool(1, "test")
    await pool.call(abs, 1, timeout_s=GENEROUS_S)
    calls = [asyncio.create_task(pool.call(time.sleep, 60, timeout_s=GENEROUS_S)) for _ in range(2)]
    await asyncio.sleep(0.05)
    await pool.aclose()
    await pool.aclose()
    for call in calls:
        with pytest.raises(WorkerDied, match="closed"):
            await call
    with pytest.raises(WorkerDied, match="pool test is closed"):
        await pool.call(abs, 1, timeout_s=GENEROUS_S)


def test_a_pool_that_nobody_has_any_more_leaves_nothing() -> None:
    before, sockets = census(), count_sockets()
    pool = bare_pool(2, "dropped")
    asyncio.run(pool.call(os.getpid, timeout_s=GENEROUS_S))
    assert census() > before
    del pool
    gc.collect()  # what was left open would be a warning, and so an error
    assert (census(), count_sockets()) == (before, sockets)


def count_sockets() -> int:
    """The sockets that this process has open."""
    links = list(Path("/proc/self/fd").iterdir())
    return sum(str(link.readlink()).startswith("socket:") for link in links if link.is_symlink())


def test_size_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="has size 0"):
        WorkerPool(0, "empty")


PARENT = """
    import asyncio, os, sys, time
    from agentrl.workers import WorkerPool

    async def main():
        pool = WorkerPool(2, "orphans", preload=())
        pids = [await pool.call(os.getpid, timeout_s=30), await pool.call(os.getppid, timeout_s=30)]
        busy = asyncio.create_task(pool.call(pow, 9, 9**9, timeout_s=30))
        await asyncio.sleep(0.1)
        print(*pids, flush=True)
        {end}

    asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["time.sleep(60)", "raise KeyError", "os.kill(0, 0)"])
def test_no_worker_outlives_its_parent(end: str) -> None:
    code = textwrap.dedent(PARENT.format(end=end))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        if "sleep" in end:
            assert all(map(psutil.pid_exists, pids))
            parent.kill()
        parent.wait(GENEROUS_S)
    deadline = time.monotonic() + 30
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(map(gone, pids))


@pytest.mark.parametrize("whom", ["worker", "template"])
async def test_what_was_stopped_is_noticed_within_the_deadline_and_not_only_after_the_call_s_time(
    whom: str,
) -> None:
    before = census()
    async with WorkerPool(1, "stopped", deadline_s=1.0, preload=()) as pool:
        assert await pool.call(os.getpid, timeout_s=GENEROUS_S)
        started = time.monotonic()
        with pytest.raises(WorkerDied, match="did not return: the process stood still for 1 s and"):
            await pool.call(stop, whom, timeout_s=600.0)
        assert time.monotonic() - started < 10.0
        assert await pool.call(abs, -3, timeout_s=GENEROUS_S) == 3  # by another one
    assert census() == before


async def test_what_is_only_busy_is_not_taken_for_stopped() -> None:
    async with WorkerPool(1, "busy", deadline_s=0.2, preload=()) as pool:
        with pytest.raises(WorkerTimeout):
            await pool.call(hold_interpreter, timeout_s=1.0)


async def test_a_stop_that_is_over_in_time_ends_nobody() -> None:
    async with WorkerPool(1, "continued", deadline_s=10.0, preload=()) as pool:
        pid = await pool.call(os.getpid, timeout_s=GENEROUS_S)
        sleeping = asyncio.create_task(pool.call(time.sleep, 0.1, timeout_s=GENEROUS_S))
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(3.0)
        os.kill(pid, signal.SIGCONT)
        await sleeping
        assert await pool.call(os.getpid, timeout_s=GENEROUS_S) == pid
