import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.envs.services import EnvServices
from agentrl.errors import ConfigError, EpisodeError, SandboxError, ToolError
from agentrl.sandboxes import (
    FileAccessError,
    Limits,
    SandboxClosed,
    SandboxesBusy,
    SandboxOptions,
    SandboxPool,
    SandboxPools,
    SandboxUnavailable,
    SyncSandbox,
    UnsupportedLimit,
    make_sandbox,
)
from agentrl.sandboxes.admission import Turnstile
from agentrl.sandboxes.fake import FakeSandbox
from agentrl.sandboxes.pool import default_size

FAKE = SandboxOptions(backend="fake")


async def test_many_episodes_share_few_sandboxes_without_cross_talk() -> None:
    pool = SandboxPool(FAKE, size=4)
    now, most = 0, 0
    used: set[int] = set()

    async def episode(number: int) -> None:
        nonlocal now, most
        async with pool.acquire() as sandbox:
            now += 1
            most = max(most, now)
            used.add(id(sandbox))
            assert await sandbox.list_dir() == ()
            await sandbox.write_file("mine", str(number).encode())
            await asyncio.sleep(0.001)
            assert await sandbox.read_file("mine") == str(number).encode()
            await sandbox.exec("true")
            now -= 1

    await asyncio.gather(*(episode(number) for number in range(64)))
    assert (most, len(used)) == (4, 4)
    metrics = pool.metrics
    assert (metrics["num_queue"], metrics["num_start"], metrics["num_reset"]) == (64, 4, 64)
    assert metrics["queue_s"] > 0
    await pool.close()
    with pytest.raises(SandboxClosed):
        async with pool.acquire():
            pass


def test_a_pool_works_from_several_loops() -> None:
    pool = SandboxPool(FAKE, size=1)

    async def once() -> None:
        async with pool.acquire() as sandbox:
            await sandbox.exec("true")

    async def twice() -> None:
        await asyncio.gather(once(), once())

    asyncio.run(twice())
    asyncio.run(twice())
    assert pool.metrics["num_start"] == 1


async def test_waiting_too_long_is_an_error_of_the_infrastructure() -> None:
    pool = SandboxPool(FAKE, size=1)
    async with pool.acquire():
        with pytest.raises(SandboxesBusy, match=r"none of the 1 sandboxes was free within 0.01 s"):
            async with pool.acquire(queue_timeout_s=0.01):
                pass
    async with pool.acquire(queue_timeout_s=0.01):
        pass
    assert issubclass(SandboxesBusy, EpisodeError)


async def test_all_kinds_share_the_places_of_a_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("agentrl.sandboxes.workspace.root_folder", lambda: tmp_path)
    counted = SandboxOptions(backend="agentrl.sandboxes.fake:FakeSandbox", per_host=2)
    one, other = SandboxPool(counted), SandboxPool(counted.model_copy(update={"per_host": 1}))
    async with one.acquire(), other.acquire():  # the larger limit leaves the other's place
        busy = r"none of the 2 places of this machine for sandboxes was free within 0.05 s"
        with pytest.raises(SandboxesBusy, match=busy):
            async with one.acquire(queue_timeout_s=0.05):
                pass
        waiting = asyncio.create_task(anext(_acquired(one)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
    await waiting
    assert 0.05 < one.metrics["queue_s"] < 5


async def _acquired(pool: SandboxPool) -> AsyncGenerator[None]:
    async with pool.acquire():
        yield


async def test_who_stops_waiting_gives_the_place_on() -> None:
    turnstile = Turnstile(1)
    await turnstile.enter(None)
    waiting = [asyncio.create_task(turnstile.enter(None)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    turnstile.leave()
    await asyncio.sleep(0.01)
    assert [task.done() for task in waiting] == [True, True, False]
    turnstile.leave()
    await waiting[2]
    turnstile.leave()
    await turnstile.enter(0)


class Fragile(FakeSandbox):
    """Dies of its first command."""

    async def alive(self) -> bool:
        return not self.commands


async def test_a_dead_sandbox_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.sandboxes.pool.make_sandbox", Fragile)
    pool = SandboxPool(FAKE, size=1)
    async with pool.acquire() as first:
        await first.exec("true")
    async with pool.acquire() as second:
        assert second is not first
    async with pool.acquire() as third:
        assert third is second


async def test_a_start_that_fails_frees_the_place() -> None:
    pool = SandboxPool(FAKE.model_copy(update={"require": ("disk",)}), size=1)
    for _ in range(2):
        with pytest.raises(UnsupportedLimit, match="the backend fake does not hold disk"):
            async with pool.acquire():
                pass


async def test_pools_are_kept_by_options() -> None:
    pools = SandboxPools()
    assert pools.pool(FAKE) is pools.pool(SandboxOptions(backend="fake"))
    assert pools.pool(FAKE) is not pools.pool(SandboxOptions(backend="fake", env={"A": "b"}))
    async with pools.acquire(FAKE) as sandbox:
        assert sandbox.name == "fake"
    await pools.close()


async def test_a_sandbox_of_a_run_knows_when_its_host_counts_as_dead() -> None:
    services = EnvServices(deadline_s=2)
    async with services.sandboxes.acquire(FAKE) as sandbox, await sandbox.fork() as other:
        assert (sandbox.deadline_s, other.deadline_s) == (2, 2)
    await services.sandboxes.close()
    services.close_workers()


def test_sizes_fit_the_machine() -> None:
    assert default_size(Limits(memory_bytes=1 << 60)) == 1
    assert default_size(Limits(memory_bytes=1 << 24)) >= 4


def test_backends_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r'bwarp is unknown.*"?bwrap'):
        make_sandbox(SandboxOptions(backend="bwarp"))
    with pytest.raises(ConfigError, match="no subclass of Sandbox"):
        make_sandbox(SandboxOptions(backend="agentrl.sandboxes:Limits"))
    with pytest.raises(ConfigError, match=r"limits.memory-bytes: got 1, expected"):
        load_config(SandboxOptions, flags=["--limits.memory-bytes=1"])
    assert make_sandbox(SandboxOptions(backend="agentrl.sandboxes.fake:FakeSandbox")).name == "fake"


def test_auto_never_takes_what_contains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    monkeypatch.setenv("PATH", "/no/such/folder")
    monkeypatch.setattr("agentrl.sandboxes.choose.probe_bwrap", _no_bwrap)
    with pytest.raises(SandboxUnavailable, match=r"no sandbox works.*no Docker engine.*forbidden"):
        make_sandbox(SandboxOptions(image="of-this-test"))


def _no_bwrap() -> object:
    from agentrl.sandboxes import Probe

    return Probe(name="bwrap", works=False, detail="user namespaces are forbidden")


async def test_the_errors_have_their_owners() -> None:
    assert issubclass(SandboxUnavailable, SandboxError)
    assert issubclass(FileAccessError, ToolError)
    assert not issubclass(FileAccessError, EpisodeError)
    async with make_sandbox(FAKE) as sandbox:
        with pytest.raises(UnsupportedLimit, match="fake keeps no processes"):
            await (await sandbox.session()).run("true", timeout_s=1)


def test_without_an_event_loop() -> None:
    with SyncSandbox(FAKE) as sandbox:
        sandbox.write_file("a", b"x")
        kept = sandbox.snapshot()
        sandbox.write_file("a", b"y")
        sandbox.restore(kept)
        assert sandbox.read_file("a") == b"x"
        assert [entry.name for entry in sandbox.list_dir()] == ["a"]
        assert sandbox.exec(["true"]).ok
        sandbox.reset()
        assert sandbox.list_dir() == ()
    with pytest.raises(SandboxClosed):
        sandbox.exec("true")
