"""What is wrong with a machine or a wish is said in one sentence, and leaves nothing behind."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentrl.cli.dispatch import main
from agentrl.sandboxes import (
    SandboxDied,
    SandboxOptions,
    SandboxUnavailable,
    UnsupportedLimit,
    make_sandbox,
)
from agentrl.sandboxes import bwrap as bwrap_module
from agentrl.sandboxes.bwrap import Machine, machine
from agentrl.sandboxes.docker import engine
from agentrl.sandboxes.leftovers import Found, find_sandboxes
from agentrl.testing.sandbox_arena import attack_options

pytestmark = pytest.mark.sandbox


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Beside what the other tests share, and what other processes have."""
    before = _found()
    yield
    assert _found() == before


def _found() -> set[Found]:
    return {f for f in find_sandboxes() if f.pid == os.getpid() or f.is_left_over}


AS_NOBODY = """
import asyncio, json, sys
from agentrl.sandboxes import UnsupportedLimit, make_sandbox
from agentrl.testing.sandbox_arena import attack_options
from agentrl.testing.sandbox_checks import CHECKS

async def main():
    async with make_sandbox(attack_options("bwrap")) as sandbox:
        for check in CHECKS:
            await check(sandbox)
            await sandbox.reset()
        held = sorted(sandbox.capabilities)
    try:
        wanted = attack_options("bwrap").model_copy(update={"require": ("memory",)})
        await make_sandbox(wanted).start()
    except UnsupportedLimit as error:
        print(json.dumps([held, str(error)]))
asyncio.run(main())
"""


@pytest.mark.bwrap
def test_bwrap_as_a_plain_user_holds_less_and_says_so() -> None:
    """All checks again, as nobody: without control groups, mounts or another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    tree, packages = str(Path(__file__).parents[3]), sysconfig.get_path("purelib")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tree}:{packages}", "TMPDIR": "/tmp"}
    environ["PYTHONDONTWRITEBYTECODE"] = "1"

    def run(python: str, code: str) -> subprocess.CompletedProcess[str]:
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        return subprocess.run(
            [*nobody, python, "-c", code], env=environ, capture_output=True, text=True, check=False
        )

    pythons = (sys.executable, "/usr/bin/python3")
    python = next((p for p in pythons if not run(p, "import agentrl.sandboxes").returncode), None)
    if python is None:
        pytest.skip("no Python of this machine may be used by other users")
    done = run(python, AS_NOBODY)
    assert not done.returncode, done.stderr
    held = '["contained", "mounts", "sessions"], "the backend bwrap does not hold memory on this'
    assert held in done.stdout


@pytest.mark.docker
async def test_an_image_that_is_missing_is_never_pulled(options: SandboxOptions) -> None:
    if options.backend != "docker":
        pytest.skip("bwrap has no images")
    wanted = options.model_copy(update={"image": "no-such-image:1"})
    with pytest.raises(SandboxUnavailable, match=r"No such image.*images are never pulled"):
        await make_sandbox(wanted).start()
    assert not engine().has_image("no-such-image:1")


async def test_a_limit_that_cannot_be_held(options: SandboxOptions) -> None:
    if options.backend == "bwrap":
        pytest.skip("as root bwrap holds all of them")
    wanted = options.model_copy(update={"require": ("overlay",)})
    with pytest.raises(UnsupportedLimit, match="the backend docker does not hold overlay"):
        await make_sandbox(wanted).start()


@pytest.mark.bwrap
async def test_namespaces_that_are_forbidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n"
    )
    program.chmod(0o755)
    found = machine()

    def forbidden() -> Machine:
        return Machine(bwrap=str(program), own_user=False, mounts=found.mounts, hierarchy=None)

    monkeypatch.setattr(bwrap_module, "machine", forbidden)
    with pytest.raises(SandboxUnavailable, match=r"No permissions.*are user namespaces forbidden"):
        await make_sandbox(SandboxOptions(backend="bwrap")).start()


async def wait_for_wrappers(name: str) -> list[psutil.Process]:
    """Of a command of ours: the first process of the namespace in which it runs, and bwrap."""
    while True:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name() == name:
                    return [parent for parent in process.parents() if parent.name() == "bwrap"]
        await asyncio.sleep(0.02)


@pytest.mark.bwrap
@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("place", [0, 1])
async def test_a_bwrap_that_somebody_stopped_has_no_result(in_session: bool, place: int) -> None:
    sandbox = make_sandbox(attack_options("bwrap"))
    sandbox.deadline_s = 1.0
    async with sandbox:
        run = (await sandbox.session()).run if in_session else sandbox.exec
        running = asyncio.ensure_future(run("sleep 20"))
        (await wait_for_wrappers("sleep"))[place].suspend()
        done, _ = await asyncio.wait([running], timeout=10)
        assert done
        with pytest.raises(SandboxDied, match="it was stopped, and killed for that"):
            running.result()


@pytest.mark.bwrap
async def test_a_policy_that_stops_itself_has_run_out_of_time() -> None:
    sandbox = make_sandbox(attack_options("bwrap"))
    sandbox.deadline_s = 0.2
    async with sandbox:
        assert (await sandbox.exec("kill -STOP $$", timeout_s=2)).status == "timeout"
        assert (await sandbox.exec("echo still there")).stdout == b"still there\n"


@pytest.mark.parametrize("backend_name", ["bwrap", "docker"])
def test_training_runs_in_sandboxes(
    backend_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--env", "code_sandbox", f"--env.sandbox.backend={backend_name}"]
    arguments += ["--steps=1", "--name=short", "--tasks-per-step=2", "--group-size=2"]
    arguments += ["--warm-start.updates=2", "--warm-start.batch=4"]
    assert main(arguments) == 0
    events = [json.loads(line) for line in Path("runs/short/events.jsonl").read_text().splitlines()]
    (isolated,) = (event for event in events if event["event"] == "isolation")
    (used,) = isolated["sandboxes"]
    assert used["backend"] == backend_name
    assert {"contained", "memory"} <= set(used["holds"])
