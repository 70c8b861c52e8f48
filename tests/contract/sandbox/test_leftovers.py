"""Nothing is left behind: a census of the machine before and after is equal."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from agentrl.cli.dispatch import main
from agentrl.sandboxes import SandboxDied, SandboxOptions, UnsupportedLimit, make_sandbox
from agentrl.sandboxes.docker import engine
from agentrl.sandboxes.leftovers import collect_leftovers, find_sandboxes

pytestmark = pytest.mark.sandbox

_FOLDERS = f"agentrl-sandboxes-{os.geteuid()}"
OWNER = """
import asyncio, signal, sys
from agentrl.sandboxes import *
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run behind `&`
async def main():
    options = SandboxOptions.model_validate_json(sys.argv[1])
    async with make_sandbox(options) as sandbox:
        session = await sandbox.session()
        await session.run("setsid sleep 1000 & echo x >file", timeout_s=20)
        print("up", flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""

FILL = """
import subprocess
held = []
try:
    while True:
        held.append(subprocess.Popen(["sleep", "300"]))
except OSError:
    pass
"""


@dataclass(frozen=True)
class Census:
    """What sandboxes could leave on a machine."""

    mounts: tuple[str, ...]
    groups: tuple[str, ...]
    folders: tuple[str, ...]
    containers: tuple[str, ...]
    volumes: int
    processes: tuple[str, ...]

    @classmethod
    def take(cls, backend: str) -> "Census":
        tmp = Path("/tmp")
        client = engine(reap=False).client if backend == "docker" else None
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        return cls(
            mounts=tuple(sorted(line for line in mounts if "agentrl" in line)),
            groups=tuple(sorted(map(str, Path("/sys/fs/cgroup").glob("*/agentrl-*")))),
            folders=tuple(sorted(map(str, tmp.glob(f"{_FOLDERS}/*/????????????????")))),
            containers=tuple(c["Id"] for c in client.api.containers(all=True)) if client else (),
            volumes=len(client.volumes.list()) if client else 0,
            processes=_processes(),
        )


def _processes() -> tuple[str, ...]:
    found: list[str] = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        ours = ("bwrap", "sleep 1000", "sleep 7200", "sleep 100 ")
        if any(word in line for word in ours) and process.info["status"] != "zombie":
            found.append(f"{process.pid} {line}")
    return tuple(sorted(found))


@pytest.fixture
def census(options: SandboxOptions) -> Iterator[Census]:
    """The machine before; after the test it must be the same."""
    collect_leftovers()
    before = Census.take(options.backend)
    yield before
    _settle(before, options.backend)


def _settle(before: Census, backend: str) -> None:
    deadline = time.monotonic() + 10
    while (after := Census.take(backend)) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert after == before


async def test_after_a_normal_end(options: SandboxOptions, census: Census) -> None:
    async with make_sandbox(options) as sandbox:
        session = await sandbox.session()
        await session.run("sleep 1000 & sleep 0", timeout_s=20)
        await sandbox.exec("setsid sleep 1000 >/dev/null 2>&1 &")
        await sandbox.snapshot()
        assert Census.take(options.backend) != census


async def test_after_a_start_that_fails(options: SandboxOptions, census: Census) -> None:
    wanted = options.model_copy(update={"base": "/no-such-folder"})
    with pytest.raises(Exception, match="no-such-folder"):
        await make_sandbox(wanted).start()
    if options.backend == "docker":
        wanted = options.model_copy(update={"require": ("overlay",)})
        with pytest.raises(UnsupportedLimit, match="does not hold overlay"):
            await make_sandbox(wanted).start()


async def test_after_a_cancelled_start(options: SandboxOptions, census: Census) -> None:
    for delay in (0.005, 0.05, 0.2):
        start = asyncio.create_task(make_sandbox(options).start())
        await asyncio.sleep(delay)
        if not start.cancel():
            await start.result().close()
        with contextlib.suppress(asyncio.CancelledError):
            await (await start).close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_after_the_owner_was_killed(
    number: signal.Signals, options: SandboxOptions, census: Census
) -> None:
    command = [sys.executable, "-c", OWNER, options.model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        held = [found for found in find_sandboxes() if found.pid == owner.pid]
        assert [(found.backend, found.is_left_over) for found in held] == [(options.backend, False)]
        collect_leftovers()
        assert [found for found in find_sandboxes() if found.pid == owner.pid] == held
        owner.send_signal(number)
        try:
            owner.wait(timeout=30)
        finally:
            owner.kill()
    if number == signal.SIGKILL:
        assert main(["sandbox", "list"]) == 0
        assert [found.pid for found in collect_leftovers()] == [owner.pid]
    else:
        assert owner.pid not in [found.pid for found in find_sandboxes()]


async def test_a_sandbox_that_dies_is_no_result(options: SandboxOptions, census: Census) -> None:
    others = set(find_sandboxes())
    async with make_sandbox(options) as sandbox:
        running = asyncio.create_task(sandbox.exec("sleep 30"))
        await asyncio.sleep(0.7)
        if options.backend == "docker":
            name = (set(find_sandboxes()) - others).pop().name
            await asyncio.to_thread(engine().client.containers.get(name).kill)
        else:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "bwrap" in process.name():
                        process.kill()
        with pytest.raises(SandboxDied):
            await running
        assert await sandbox.alive() is (options.backend == "bwrap")


async def test_processes_that_a_policy_left_are_its_own_trouble(options: SandboxOptions) -> None:
    """They may let no command begin; that is a result, not the end of the sandbox."""
    if options.backend == "docker":
        return
    async with make_sandbox(options) as sandbox:
        python = await sandbox.session("python")
        await python.run(FILL, timeout_s=20)
        result = await sandbox.exec(["true"])
        assert result.exit_code == 254
        assert b"temporarily unavailable" in result.stderr
        await sandbox.reset()
        assert (await sandbox.exec(["true"])).ok


async def test_many_short_commands_leave_room_for_the_next(options: SandboxOptions) -> None:
    """What ended counts against the limit of processes until the machine's init has seen it."""
    if options.backend == "docker":
        return
    async with make_sandbox(options) as sandbox:
        for _ in range(25):
            done = await asyncio.gather(*(sandbox.exec(["true"]) for _ in range(6)))
            assert all(result.ok for result in done)
