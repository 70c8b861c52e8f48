"""What every sandbox does, attacks aside: each check is a function that a backend passes or fails.

async with MySandbox(attack_options()) as sandbox:
for check in CHECKS:
await check(sandbox)
await sandbox.reset()
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import psutil

from agentrl.errors import SandboxError
from agentrl.sandboxes import (
    FileAccessError,
    FileTooLarge,
    Sandbox,
    SandboxClosed,
    UnsupportedLimit,
)

Check = Callable[[Sandbox], Awaitable[None]]


async def commands_end_as_they_say(sandbox: Sandbox) -> None:
    """Exit codes, signals, missing programs and folders are results."""
    done = await sandbox.exec("echo out; echo err >&2; exit 3")
    assert (done.status, done.exit_code) == ("exited", 3)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    assert done.text() == "out\nerr\n"
    assert not done.ok
    killed = await sandbox.exec("kill -9 $$")
    assert (killed.status, killed.exit_code) == ("signalled", 137)
    assert (await sandbox.exec(["no-such-program"])).exit_code == 127
    assert (await sandbox.exec("true", cwd="no-such-folder")).exit_code == 126
    assert (await sandbox.exec("true \0")).exit_code == 126
    long = await sandbox.exec("#" + "x" * 200_000)
    assert long.exit_code == 126
    assert b"write it to a file" in long.stderr


async def input_and_environment(sandbox: Sandbox) -> None:
    """Standard input arrives and ends; the environment is only what was asked for."""
    data = bytes(range(256)) * 400
    assert (await sandbox.exec(["cat"], stdin=data, max_output=len(data))).stdout_total == len(data)
    assert (await sandbox.exec("cat; echo end")).stdout == b"end\n"
    seen = await sandbox.exec('echo "$WHO $HOME $PWD"', env={"WHO": "me"})
    assert seen.stdout.decode() == f"me /tmp {sandbox.workspace.rstrip('/')}\n"


async def output_is_bounded(sandbox: Sandbox) -> None:
    """Head and tail stay, all of it is counted; bytes are passed on as they are."""
    odd = await sandbox.exec(r"printf '\377\000\r\n'")
    assert odd.stdout == b"\xff\x00\r\n"
    assert "\ufffd" in odd.text()
    most = sandbox.limits.output_bytes
    code = f"import sys; sys.stdout.write('a' + 'x' * {3 * most} + 'z')"
    long = await sandbox.exec(["python3", "-c", code])
    assert long.stdout_total == 3 * most + 2
    assert long.stdout_truncated
    assert long.stdout.startswith(b"ax")
    assert long.stdout.endswith(b"xz")
    assert b"bytes left out" in long.stdout
    assert len(long.stdout) < most + 100
    short = await sandbox.exec("echo 0123456789", max_output=4)
    assert short.stdout.replace(b"\n[... 7 bytes left out ...]\n", b"|") == b"01|9\n"


async def timeouts_keep_what_was_printed(sandbox: Sandbox) -> None:
    """A timeout is a result with partial output; time beyond the limit is not to be had."""
    began = time.monotonic()
    late = await sandbox.exec("echo begun; sleep 100", timeout_s=1)
    assert (late.status, late.exit_code, late.stdout) == ("timeout", None, b"begun\n")
    assert late.duration_s >= 1
    assert time.monotonic() - began < 20
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


async def cancelling_ends_the_command(sandbox: Sandbox) -> None:
    """Who is cancelled leaves nothing running."""
    task = asyncio.create_task(sandbox.exec("sleep 2; touch ran"))
    await asyncio.sleep(0.5)
    task.cancel()
    assert isinstance(await _await_error(task), asyncio.CancelledError)
    await asyncio.sleep(2)
    assert "ran" not in [entry.name for entry in await sandbox.list_dir()]


async def files_come_and_go(sandbox: Sandbox) -> None:
    """Reading, writing, listing; what cannot be done is said in one sentence."""
    data = bytes(range(256)) * 1000
    await sandbox.write_file("a/b/file", data)
    assert await sandbox.read_file("a/b/file") == data
    await sandbox.write_file("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (await sandbox.exec("./run.sh")).stdout == b"ran\n"
    await sandbox.write_file("run.sh", b"#!/bin/sh\necho again\n")
    assert (await sandbox.exec("./run.sh")).stdout == b"again\n"
    await sandbox.exec("ln -s a link; touch 'odd name\n'; ls -la")
    found = [(entry.name, entry.kind) for entry in await sandbox.list_dir()]
    expected = [("a", "folder"), ("link", "link"), ("odd name\n", "file"), ("run.sh", "file")]
    assert found == expected
    await _assert_access_refused(sandbox.read_file("missing"), "no such file")
    await _assert_access_refused(sandbox.read_file("a"), "folder")
    await _assert_access_refused(sandbox.write_file("a", b"x"), "no regular file")
    await _assert_access_refused(sandbox.write_file("run.sh/x", b"x"), "")
    await _assert_access_refused(sandbox.list_dir("missing"), "no such folder")
    error = await _await_error(sandbox.read_file("a/b/file", max_bytes=10))
    assert isinstance(error, FileTooLarge)
    assert "256000 bytes" in str(error)


async def _assert_access_refused(access: Awaitable[object], why: str) -> None:
    error = await _await_error(access)
    assert isinstance(error, FileAccessError), error
    assert why in str(error), error
    assert "\n" not in str(error)


async def _await_error(access: Awaitable[object]) -> object:
    """The exception that it raises, else what it returns."""
    return (await asyncio.gather(access, return_exceptions=True))[0]


async def links_are_replaced_or_followed(sandbox: Sandbox) -> None:
    """A new file takes a link's place; `in_place` all names keep leading to the same file."""
    make = "mkdir d; echo 1 >d/file; chmod 750 d/file; ln -s d/file link; ln d/file 'name\n'"
    await sandbox.exec(make)
    await sandbox.write_file("link", b"2", in_place=True)
    await sandbox.write_file("name\n", b"3", in_place=True)
    seen = await sandbox.exec("cat d/file; stat -c %a d/file; [ -L link ] && [ d/file -ef name* ]")
    assert (seen.exit_code, seen.stdout) == (0, b"3750\n")
    await sandbox.exec("ln -s loop loop; ln -s d/later dangling")
    await _assert_access_refused(sandbox.write_file("loop", b"x", in_place=True), "leads nowhere")
    await sandbox.write_file("dangling", b"4", in_place=True)
    await sandbox.write_file("link", b"5")
    seen = await sandbox.exec("cat d/file d/later link; [ ! -L link ]; ls d")
    assert seen.stdout == b"345file\nlater\n"


async def a_full_disk_loses_nothing(sandbox: Sandbox) -> None:
    """When there is no room the old content stays, and there is room again after a reset."""
    if "disk" not in sandbox.capabilities:
        return
    await sandbox.write_file("kept", b"old")
    await _assert_access_refused(
        sandbox.write_file("kept", b"x" * 2 * sandbox.limits.disk_bytes), "No space"
    )
    assert await sandbox.read_file("kept") == b"old"
    await sandbox.exec("cat /dev/zero >full")
    assert (await sandbox.exec("echo alive")).stdout == b"alive\n"
    await sandbox.reset()
    await sandbox.write_file("kept", b"x" * (sandbox.limits.disk_bytes // 2))


async def trees_are_copied(sandbox: Sandbox) -> None:
    """A folder goes in and comes out as it was."""
    with tempfile.TemporaryDirectory() as here:
        source, target = Path(here, "source"), Path(here, "target")
        (source / "inner").mkdir(parents=True)
        (source / "inner" / "file").write_bytes(b"\x00\xff")
        (source / "inner" / "link").symlink_to("file")
        await sandbox.upload(source, "tree")
        assert (await sandbox.exec("cat tree/inner/link")).stdout == b"\x00\xff"
        await sandbox.exec("echo more >tree/new")
        await sandbox.download("tree", target)
        assert (target / "inner" / "file").read_bytes() == b"\x00\xff"
        assert (target / "inner" / "link").readlink() == Path("file")
        assert (target / "new").read_text() == "more\n"


async def mounts_can_only_be_read(sandbox: Sandbox) -> None:
    """A folder of this machine is seen inside, also below a private one, and never changes."""
    with tempfile.TemporaryDirectory() as here:
        source = _make_world_writable_folder(Path(here, "shown"))
        options = sandbox.options.model_copy(update={"mounts": {"data.1": source}})
        other = type(sandbox)(options)
        if "mounts" not in sandbox.capabilities:
            assert isinstance(await _await_error(other.start()), UnsupportedLimit)
            return
        async with other:
            place = other.mounts["data.1"]
            for script in (
                "echo x >{}/inner/file",
                "touch {}/new",
                "rm {}/inner/file",
                "mv {}/inner {}/moved",
                "chmod 700 {}/inner",
                "umount {}",
                "mount -o remount,rw {}; echo x >{}/inner/file",
            ):
                done = await other.exec(script.replace("{}", place))
                assert "contained" not in sandbox.capabilities or not done.ok
            await other.reset()
            if "contained" in sandbox.capabilities:
                assert await other.read_file(f"{place}/inner/file") == b"as it was\n"
            assert await other.list_dir() == ()
        _assert_writable_folder_as_made(source)
        missing = options.model_copy(update={"mounts": {"data": source / "missing"}})
        assert isinstance(await _await_error(type(sandbox)(missing).start()), SandboxError)


def _make_world_writable_folder(place: Path) -> Path:
    inner = place / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("as it was\n")
    for path in (place, inner, inner / "file"):
        path.chmod(0o777)
    return place


def _assert_writable_folder_as_made(place: Path) -> None:
    assert [path.name for path in place.iterdir()] == ["inner"]
    assert (place / "inner" / "file").read_text() == "as it was\n"
    assert (place / "inner").stat().st_mode & 0o777 == 0o777


async def states_are_kept_and_restored(sandbox: Sandbox) -> None:
    """Snapshot, restore, fork and reset of the workspace, deleted files included."""
    await sandbox.exec("mkdir old; echo 1 >old/file; echo x >/tmp/scratch")
    kept = await sandbox.snapshot()
    await sandbox.exec("rm -r old; echo 2 >new; mkdir -m 500 closed")
    async with await sandbox.fork() as other:
        assert [entry.name for entry in await other.list_dir()] == ["closed", "new"]
        await other.exec("echo 3 >new")
    assert await sandbox.read_file("new") == b"2\n"
    await sandbox.restore(kept)
    assert [entry.name for entry in await sandbox.list_dir()] == ["old"]
    assert await sandbox.read_file("old/file") == b"1\n"
    await sandbox.write_file("old/file", b"4\n")
    await sandbox.reset()
    assert await sandbox.list_dir() == ()
    if "contained" in sandbox.capabilities:
        assert await sandbox.list_dir("/tmp") == ()


async def bash_sessions_keep_their_state(sandbox: Sandbox) -> None:
    """Variables and folders last; syntax errors, `exit` and timeouts do not break the session."""
    if "sessions" not in sandbox.capabilities:
        return
    bash = await sandbox.session("bash")
    assert (await bash.run("x=5; cd /tmp; false", timeout_s=20)).exit_code == 1
    assert (await bash.run('echo "$x $PWD"; cat', timeout_s=20)).stdout == b"5 /tmp\n"
    assert (await bash.run("echo 'open", timeout_s=20)).exit_code == 2
    assert (await bash.run("echo err >&2; sleep 50 & echo it\\'s", timeout_s=20)).ok
    late = await bash.run("echo begun; sleep 100", timeout_s=1)
    assert (late.status, late.stdout) == ("timeout", b"begun\n")
    assert (await bash.run("echo $x", timeout_s=20)).stdout == b"5\n"
    stubborn = await bash.run("trap '' INT; while :; do :; done", timeout_s=0.5)
    assert stubborn.status == "timeout"
    assert not bash.is_running
    assert (await bash.run("echo new $x", timeout_s=20)).stdout == b"new\n"
    ended = await bash.run("echo bye; exit 4", timeout_s=20)
    assert (ended.exit_code, ended.stdout) == (4, b"bye\n")
    await bash.close()
    assert isinstance(await _await_error(bash.run("true", timeout_s=1)), SandboxClosed)


async def python_sessions_keep_their_state(sandbox: Sandbox) -> None:
    """Names last; the last expression's value is shown; errors and timeouts leave the state."""
    if "sessions" not in sandbox.capabilities:
        return
    python = await sandbox.session("python")
    assert (await python.run("import os\nx = {'a': 1}", timeout_s=20)).stdout == b""
    assert (await python.run("x['b'] = 2\nx", timeout_s=20)).stdout == b"{'a': 1, 'b': 2}\n"
    wrong = await python.run("1 / 0", timeout_s=20)
    assert wrong.exit_code == 1
    assert wrong.stdout.endswith(b"ZeroDivisionError: division by zero\n")
    assert (await python.run("if x", timeout_s=20)).exit_code == 1
    assert (await python.run("import time; time.sleep(100)", timeout_s=1)).status == "timeout"
    assert (await python.run("len(x), input", timeout_s=20)).stdout.startswith(b"(2, <built-in")
    assert (await python.run("os.system('echo child')", timeout_s=20)).stdout == b"child\n0\n"
    long = await python.run("print('x' * 10**6)", timeout_s=20)
    assert long.stdout_total == 10**6 + 1
    assert (await python.run("raise SystemExit(3)", timeout_s=20)).exit_code == 3
    assert b"NameError" in (await python.run("x", timeout_s=20)).stdout


async def memory_is_told_apart(sandbox: Sandbox) -> None:
    """A command that dies for memory says so; the next one runs."""
    if "memory" not in sandbox.capabilities:
        return
    code = f"x = b'x' * {2 * sandbox.limits.memory_bytes}"
    assert (await sandbox.exec(["python3", "-c", code])).status == "oom"
    assert (await sandbox.exec("kill -9 $$")).status == "signalled"


async def many_commands_at_once(sandbox: Sandbox) -> None:
    """Commands of one sandbox run side by side, each with its own output."""
    results = await asyncio.gather(*(sandbox.exec(f"sleep 0.1; echo {n}") for n in range(6)))
    assert [result.stdout for result in results] == [b"%d\n" % n for n in range(6)]


async def nothing_works_after_close(sandbox: Sandbox) -> None:
    """`close` may be called twice; a closed sandbox is refused."""
    other = type(sandbox)(sandbox.options)
    assert isinstance(await _await_error(other.exec("true")), SandboxClosed)
    await other.start()
    assert await other.alive()
    descriptors = psutil.Process().num_fds()
    for _ in range(3):
        await other.exec("true")
    assert psutil.Process().num_fds() <= descriptors + 2
    await other.close()
    await other.close()
    assert not await other.alive()
    assert isinstance(await _await_error(other.exec("true")), SandboxClosed)


CHECKS: Final[tuple[Check, ...]] = (
    commands_end_as_they_say,
    input_and_environment,
    output_is_bounded,
    timeouts_keep_what_was_printed,
    cancelling_ends_the_command,
    files_come_and_go,
    links_are_replaced_or_followed,
    a_full_disk_loses_nothing,
    trees_are_copied,
    mounts_can_only_be_read,
    states_are_kept_and_restored,
    bash_sessions_keep_their_state,
    python_sessions_keep_their_state,
    memory_is_told_apart,
    many_commands_at_once,
    nothing_works_after_close,
)
