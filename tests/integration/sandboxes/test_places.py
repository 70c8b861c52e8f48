"""The places of a machine, with processes that share them and one that is killed."""

import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

PLACES = 2
# Runs its episodes in a pool of its own kind and writes when one begins and ends.
WORKER = """
import asyncio, os, sys
from agentrl.sandboxes import SandboxOptions, SandboxPool
name, log, places, episodes, seconds = sys.argv[1:]
log = os.open(log, os.O_WRONLY | os.O_APPEND)
backend, env = "agentrl.sandboxes.fake:FakeSandbox", {"KIND": name}
pool = SandboxPool(SandboxOptions(backend=backend, env=env, per_host=int(places)), size=1)
async def episode():
    async with pool.acquire(queue_timeout_s=30):
        os.write(log, f"+{name}\\n".encode())
        await asyncio.sleep(float(seconds))
        os.write(log, f"-{name}\\n".encode())
async def main():
    await asyncio.gather(*(episode() for _ in range(int(episodes))))
print("up", flush=True)
input()
asyncio.run(main())
"""


class Worker(subprocess.Popen[bytes]):
    def __init__(self, name: str, log: Path, episodes: int, seconds: float) -> None:
        given = (name, log, PLACES, episodes, seconds)
        super().__init__(
            [sys.executable, "-c", WORKER, *map(str, given)],
            env={**os.environ, "TMPDIR": str(log.parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ready(self) -> None:
        assert self.stdout is not None
        assert self.stdout.readline() == b"up\n"

    def go(self) -> None:
        assert self.stdin is not None
        self.stdin.write(b"\n")
        self.stdin.flush()


def _wait_for_lines(log: Path, count: int, *workers: Worker) -> None:
    while log.read_text().count("\n") < count:
        assert not any(worker.poll() for worker in workers)


def test_processes_share_the_places_and_the_dead_have_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    with (
        Worker("holder", log, 1, 1000) as holder,
        Worker("a", log, 8, 0.05) as a,
        Worker("b", log, 8, 0.05) as b,
    ):
        for worker in (holder, a, b):
            worker.ready()
        try:
            holder.go()
            _wait_for_lines(log, 1, holder)
            a.go()
            b.go()
            _wait_for_lines(log, 13, holder, a, b)
            before = log.read_text().count("\n") - 1
        finally:
            holder.kill()
        assert (a.wait(timeout=30), b.wait(timeout=30)) == (0, 0)
    lines = log.read_text().splitlines()[1:]
    in_use = list(accumulate(1 if line[0] == "+" else -1 for line in lines))
    assert max(in_use[:before]) == PLACES - 1
    assert max(in_use) == PLACES
    assert (in_use[-1], len(lines)) == (0, 32)
    # A process that gives its place to its own next episode lets the other in.
    assert {line[1:] for line in lines[:before]} == {"a", "b"}
