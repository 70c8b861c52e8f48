"""The remote example passes the suites like a backend of the package."""

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp.test_utils import TestServer

from agentrl.sandboxes import SandboxDied, SandboxOptions, SandboxUnavailable, make_sandbox
from agentrl.testing.sandbox_arena import Arena, attack_options
from agentrl.testing.sandbox_attacks import ATTACKS
from agentrl.testing.sandbox_checks import CHECKS

pytestmark = [pytest.mark.sandbox, pytest.mark.bwrap, pytest.mark.timeout(180)]
FOLDER = Path(__file__).parents[3] / "examples" / "remote_sandbox"
SLOW = ("cancelling_ends_the_command", "states_are_kept_and_restored", "many_commands_at_once")
SOME = (
    "fork bomb",
    "many files",
    "daemon",
    "host files",
    "link for writing",
    "links in a download",
)


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def options(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxOptions]:
    async with TestServer(_module("server").make_app(SandboxOptions(backend="bwrap"))) as server:
        monkeypatch.setenv("SANDBOX_URL", str(server.make_url("")).rstrip("/"))
        yield attack_options(f"{FOLDER}/remote.py:RemoteSandbox")


async def test_it_passes_the_suites(options: SandboxOptions) -> None:
    with Arena() as arena:
        async with make_sandbox(options) as sandbox:
            # The others wait for timeouts, which the server's own sandboxes have been tested for.
            for check in (check for check in CHECKS if check.__name__ not in SLOW):
                await check(sandbox)
                await sandbox.reset()
            for attack in ATTACKS:
                if attack.name in SOME:
                    assert not await attack.gets_through(sandbox, arena), attack.name
                    await sandbox.reset()


async def test_what_the_provider_does_wrong_is_no_result(
    options: SandboxOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_sandbox(options) as sandbox:
        with monkeypatch.context() as patch:
            patch.setattr(sandbox, "_box", "/sandboxes/unknown")
            with pytest.raises(SandboxDied, match="does not know this sandbox"):
                await sandbox.exec("true")
    monkeypatch.setenv("SANDBOX_URL", "http://127.0.0.1:9")
    with pytest.raises(SandboxUnavailable, match="does not answer"):
        await make_sandbox(options).start()
