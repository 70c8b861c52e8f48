"""What sandboxes cost, against a plain child process and against Docker's own way.

    python benchmarks/sandbox.py [--backend bwrap,docker] [--repeat 30]

Each line is one number with its bar, and the process ends with 1 if one is missed. Medians; run it
on a quiet machine.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

from agentrl.sandboxes import SandboxOptions, SandboxPool, SandboxUnavailable, make_sandbox
from agentrl.sandboxes.docker import engine

SESSION_MS = {"bwrap": 1.0, "docker": 5.0}
EXEC_OVER_PLAIN_MS = {"bwrap": 10.0}
RESET_MS = {"bwrap": 50.0}
REPOSITORY_FILES, FILE_BYTES = 2000, 20_000
EPISODES, AT_ONCE, EXECS = 32, 8, 4


class Report:
    """Prints lines and remembers what was missed."""

    def __init__(self) -> None:
        self.missed = False

    def line(self, backend: str, what: str, value: float, unit: str, bar: float | None) -> None:
        """One number; with a bar, at most that is asked for."""
        wrong = bar is not None and value > bar
        self.missed |= wrong
        wanted = "" if bar is None else f"  at most {bar:g}{'  MISSED' if wrong else ''}"
        print(f"{backend:7} {what:52} {value:9.2f} {unit}{wanted}", flush=True)


async def median_ms(repeat: int, call: Callable[[], Awaitable[object]]) -> float:
    """The median of some calls, after one that warms up."""
    await call()
    times: list[float] = []
    for _ in range(repeat):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


async def cpu_ms(repeat: int, call: Callable[[], Awaitable[object]]) -> float:
    """Processor time of one call, that of its child processes included, whatever else runs here."""
    began = sum(os.times()[:4])
    for _ in range(repeat):
        await call()
    return (sum(os.times()[:4]) - began) / repeat * 1e3


async def plain() -> None:
    """A child process without a sandbox: what a caller in Python pays."""
    subprocess.run(["/usr/bin/true"], check=True)  # noqa: ASYNC221


async def in_bare_bash(repeat: int) -> float:
    """What bash itself needs, without a sandbox, limits or an event loop."""
    with subprocess.Popen(  # noqa: ASYNC220
        ["bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as bash:
        assert bash.stdin is not None
        assert bash.stdout is not None
        to, of = bash.stdin.fileno(), bash.stdout.fileno()

        async def true() -> None:
            os.write(to, b"/usr/bin/true </dev/null\necho $?\n")
            os.read(of, 100)

        median = await median_ms(repeat, true)
        bash.stdin.close()
        return median


@contextlib.contextmanager
def repository() -> Generator[str]:
    """A folder of 40 MB."""
    with tempfile.TemporaryDirectory() as name:
        for number in range(REPOSITORY_FILES):
            file = Path(name, f"{number % 50}", f"{number}")
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(b"x" * FILE_BYTES)
        yield name


async def commands(backend: str, repeat: int, report: Report) -> None:
    """One command, alone and in a session."""
    alone = await median_ms(repeat, plain)
    report.line(backend, "/usr/bin/true, a plain child process", alone, "ms", None)
    async with make_sandbox(SandboxOptions(backend=backend)) as sandbox:

        async def true() -> None:
            await sandbox.exec(["/usr/bin/true"])

        once = await median_ms(repeat, true)
        bar = EXEC_OVER_PLAIN_MS.get(backend)
        report.line(backend, "/usr/bin/true by exec, over a plain process", once - alone, "ms", bar)
        if bar is not None:
            cpu = await cpu_ms(3 * repeat, true) - await cpu_ms(3 * repeat, plain)
            report.line(backend, "the same in processor time", cpu, "ms", bar)
        bash = await sandbox.session()

        async def keep() -> None:
            await bash.run("/usr/bin/true", timeout_s=10)

        kept = await median_ms(10 * repeat, keep)
        report.line(backend, "/usr/bin/true in a bash session", kept, "ms", SESSION_MS[backend])
        ours = await cpu_ms(10 * repeat, keep)
        report.line(backend, "the same in processor time of the caller", ours, "ms", None)
        floor = await in_bare_bash(10 * repeat)
        report.line(backend, "the same in a bare bash, over blocking pipes", floor, "ms", None)


async def starts(backend: str, report: Report) -> None:
    """Starts and ends, several at once."""

    async def one() -> None:
        async with make_sandbox(SandboxOptions(backend=backend)):
            pass

    await one()
    began = time.perf_counter()
    for _ in range(4):
        await asyncio.gather(*(one() for _ in range(4)))
    report.line(
        backend, "starts per second, 4 at once", 16 / (time.perf_counter() - began), "", None
    )


async def resets(backend: str, repeat: int, report: Report) -> None:
    """Back to the base after a few files changed."""
    with repository() as base:
        sandbox = await make_sandbox(SandboxOptions(backend=backend, base=base)).start()

        async def change() -> None:
            await sandbox.exec("for n in 1 2 3 4 5; do echo x >>1/$((n * 50 + 1)); done")

        times: list[float] = []
        for _ in range(max(3, repeat // 5)):
            await change()
            began = time.perf_counter()
            await sandbox.reset()
            times.append(time.perf_counter() - began)
        await sandbox.close()
        value = statistics.median(times) * 1e3
        report.line(backend, "reset of a 40 MB repository", value, "ms", RESET_MS.get(backend))


async def episodes(backend: str, report: Report) -> float:
    """Seconds of many episodes of some commands each, over a pool."""
    pool = SandboxPool(SandboxOptions(backend=backend), size=AT_ONCE)

    async def episode() -> None:
        async with pool.acquire() as sandbox:
            for _ in range(EXECS):
                await sandbox.exec("python3 -c 'print(1)'")

    began = time.perf_counter()
    await asyncio.gather(*(episode() for _ in range(EPISODES)))
    took = time.perf_counter() - began
    await pool.close()
    what = f"{EPISODES} episodes of {EXECS} commands at once, {AT_ONCE} sandboxes"
    report.line(backend, what, took, "s", None)
    return took


def by_docker_itself(repeat: int) -> tuple[float, float]:
    """Docker's library: ms of `exec_run`, and s of the same episodes with a container each."""
    client, image = engine().client, SandboxOptions().image
    container = client.containers.create(image, ["sleep", "600"], network_mode="none")
    try:
        container.start()
        times: list[float] = []
        for _ in range(repeat):
            began = time.perf_counter()
            container.exec_run(["/usr/bin/true"])
            times.append(time.perf_counter() - began)
    finally:
        container.remove(force=True)

    began = time.perf_counter()
    for _ in range(EPISODES):
        container = client.containers.create(image, ["sleep", "600"], network_mode="none")
        container.start()
        for _ in range(EXECS):
            container.exec_run(["python3", "-c", "print(1)"])
        container.remove(force=True)
    return statistics.median(times) * 1e3, time.perf_counter() - began


async def measure(backends: list[str], repeat: int, report: Report) -> None:
    """All of it, and Docker's own way for comparison."""
    took: dict[str, float] = {}
    for backend in backends:
        await commands(backend, repeat, report)
        await starts(backend, report)
        await resets(backend, repeat, report)
        took[backend] = await episodes(backend, report)
    if "docker" in backends:
        exec_run, one_each = await asyncio.to_thread(by_docker_itself, repeat)
        report.line("docker", "/usr/bin/true by docker-py's exec_run", exec_run, "ms", None)
        report.line(
            "docker", "the episodes, one after another, a container each", one_each, "s", None
        )
        for backend, seconds in took.items():
            report.line(backend, "its episodes as a share of those", seconds / one_each, "", 1.0)


def main() -> int:
    """Measure, print, and fail if a bar is missed."""
    parser = argparse.ArgumentParser(description="What sandboxes cost.")
    parser.add_argument("--backend", default="bwrap,docker")
    parser.add_argument("--repeat", type=int, default=30)
    asked = parser.parse_args()
    report = Report()
    try:
        asyncio.run(measure(asked.backend.split(","), asked.repeat, report))
    except SandboxUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return int(report.missed)


if __name__ == "__main__":
    sys.exit(main())
