"""Attacks on sandboxes: what hostile code tries, and how it is known that it got through.

For a backend of your own:

    with Arena() as arena:  # of agentrl.testing.sandbox_arena
        async with MySandbox(attack_options()) as sandbox:
            for attack in ATTACKS:
                assert not await attack.gets_through(sandbox, arena)

An attack that is contained because it never worked proves nothing, so each is first shown to get
through where nothing contains it: `works_uncontained`.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentrl.sandboxes import (
    Capability,
    ExecResult,
    FileAccessError,
    Sandbox,
    SandboxOptions,
)
from agentrl.sandboxes.local import UnsafeLocalSandbox
from agentrl.testing.sandbox_arena import HEAD, Arena, attack_options
from agentrl.testing.sandbox_naive import (
    FLOOD,
    FORGE,
    HELD_S,
    HOLD,
    SURVIVE,
    has_secret,
    naive_fifo,
    naive_flood,
    naive_hangs,
    naive_kill,
    naive_session,
    naive_unpack,
)

Verdict = Callable[[Sandbox, Arena, ExecResult], Awaitable[bool]]


async def _printed_escaped(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    return b"ESCAPED" in result.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack: Python code that runs in the sandbox, and the judgement from outside."""

    name: str
    what: str
    """One clause, for the table in the docs."""
    needs: Capability = "contained"
    """Where this is missing, the backend does not claim to hold."""
    code: str = ""
    verdict: Verdict = _printed_escaped
    timeout_s: float = 20.0
    cpus: float | None = None
    naive: Callable[[Arena], bool] | None = None
    """Shows that the attack works on what people write without a sandbox; None: unsafe-local."""

    def options(self, options: SandboxOptions) -> SandboxOptions:
        """The options that the attack needs."""
        if self.cpus is None:
            return options
        limits = options.limits.model_copy(update={"cpus": self.cpus})
        return options.model_copy(update={"limits": limits})

    async def gets_through(self, sandbox: Sandbox, arena: Arena) -> bool:
        """Attack a running sandbox; it is reset afterwards."""
        argv = ("python3", "-c", HEAD + self.code, arena.facts(sandbox.limits))
        result = await sandbox.exec(argv, timeout_s=self.timeout_s, kill_leftovers=True)
        through = await self.verdict(sandbox, arena, result)
        arena.end_survivors()
        return through

    async def works_uncontained(self, arena: Arena) -> bool:
        """Attack where nothing contains it."""
        if self.naive is not None:
            return await asyncio.to_thread(self.naive, arena)
        async with UnsafeLocalSandbox(attack_options()) as sandbox:
            return await self.gets_through(sandbox, arena)


# Verdicts that look from outside.


async def _left_processes_behind(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    return await asyncio.to_thread(arena.end_survivors)


async def _held_call_too_long(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    return result.duration_s > HELD_S


async def _wrote_file_outside_sandbox(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    found = False
    for folder in (arena.folder, Path("/var/tmp"), Path("/dev/shm"), Path("/etc"), Path("/usr")):
        written = folder / arena.marker
        found |= written.exists()
        written.unlink(missing_ok=True)
    return found


async def _exceeded_output_limit(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    return len(result.stdout) > 2 * sandbox.limits.output_bytes


async def _read_host_secret_by_link(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    with contextlib.suppress(FileAccessError):
        return arena.secret.encode() in await sandbox.read_file("link")
    return False


async def _wrote_outside_through_link(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    with contextlib.suppress(FileAccessError):
        await sandbox.write_file("folder/written", b"x")
    written = arena.folder / "written"
    found = written.exists()
    written.unlink(missing_ok=True)
    return found


async def _hung_file_access_at_fifo(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    began = time.monotonic()
    with contextlib.suppress(FileAccessError):
        await sandbox.read_file("fifo")
    with contextlib.suppress(FileAccessError):
        await sandbox.write_file("fifo", b"x")
    return time.monotonic() - began > 2 * HELD_S


async def _downloaded_host_secret(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    target = arena.folder / "download"
    with contextlib.suppress(FileAccessError):
        await sandbox.download("", target)
    return await asyncio.to_thread(has_secret, target, arena)


async def _was_forged_result_believed(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    session = await sandbox.session("bash")
    forged = await session.run(FORGE, timeout_s=10)
    after = await session.run("echo after", timeout_s=10)
    return forged.exit_code == 0 or after.stdout != b"after\n"


async def _is_sandbox_dead(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    return not await sandbox.alive()


_SYSCALL: Final = """
def call(x86, arm, *arguments):
    return libc.syscall(arm if os.uname().machine == "aarch64" else x86, *arguments)
"""

ATTACKS: Final[tuple[Attack, ...]] = (
    Attack(
        name="fork bomb",
        what="more processes than the limit",
        needs="processes",
        code="""
pids = []
try:
    for _ in range(A["processes"] + 60):
        pid = os.fork()
        if pid == 0: time.sleep(30); os._exit(0)
        pids.append(pid)
    escaped()
except OSError: pass
for pid in pids: os.kill(pid, 9); os.waitpid(pid, 0)
""",
    ),
    Attack(
        name="memory of one",
        what="one process takes more memory than the limit",
        needs="memory",
        code='x = b"x" * (A["memory"] + (64 << 20)); escaped()',
    ),
    Attack(
        name="memory of many",
        what="processes that are small alone take more memory than the limit together",
        needs="memory",
        code="""
r, w = os.pipe()
pids = []
for _ in range(6):
    pid = os.fork()
    if pid == 0:
        x = b"x" * (A["memory"] // 4); os.write(w, b"1"); time.sleep(30); os._exit(0)
    pids.append(pid)
os.close(w)
time.sleep(2)
if all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in pids): escaped()
for pid in pids: os.kill(pid, 9)
""",
    ),
    Attack(
        name="one large file",
        what="a file larger than the limit of the disk",
        needs="disk",
        code="""
with open("large", "wb", buffering=0) as file:
    try:
        for _ in range(2 * A["disk"] >> 20): file.write(b"x" * (1 << 20))
        if file.tell() >= 2 * A["disk"]: escaped()
    except OSError: pass
os.unlink("large")
""",
    ),
    Attack(
        name="many files",
        what="files that are small alone fill more than the limit together",
        needs="disk",
        code="""
try:
    for i in range(16):
        with open(f"part{i}", "wb", buffering=0) as file: n = file.write(b"x" * (A["disk"] // 8))
        if n < A["disk"] // 8: raise OSError
    escaped()
except OSError: pass
""",
    ),
    Attack(
        name="inodes",
        what="more empty files than the limit",
        needs="files",
        code="""
try:
    for i in range(A["files"] + 100): open(f"empty{i}", "w").close()
    escaped()
except OSError: pass
""",
    ),
    Attack(
        name="processor",
        what="eight busy loops take more than a tenth of a core, the limit there",
        needs="cpu",
        cpus=0.1,
        code="""
end = time.monotonic() + 6
for _ in range(8):
    if os.fork() == 0:
        while time.process_time() < 0.1 and time.monotonic() < end: pass
        os._exit(0)
if sum(sum(os.wait3(0)[2][:2]) for _ in range(8)) > 0.75: escaped()
""",
    ),
    Attack(
        name="outlives its timeout",
        what="ignores SIGTERM and leaves a child in a session of its own",
        code=SURVIVE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); survive(); time.sleep(60)",
        timeout_s=1.5,
        verdict=_left_processes_behind,
    ),
    Attack(
        name="daemon",
        what="leaves a daemon and ends normally",
        code=SURVIVE + "survive(); time.sleep(0.5)",
        verdict=_left_processes_behind,
    ),
    Attack(
        name="held pipe",
        what="leaves a child that holds the output open",
        code=HOLD,
        verdict=_held_call_too_long,
        naive=naive_hangs,
    ),
    Attack(
        name="loopback",
        what="connects to a service on this machine",
        code="""
try:
    with socket.create_connection(("127.0.0.1", A["port"]), 2) as s:
        if s.recv(100).decode() == A["secret"]: escaped()
except OSError: pass
""",
    ),
    Attack(
        name="abstract socket",
        what="connects to an abstract Unix socket of this machine",
        code="""
try:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("\\0" + A["marker"])
        if s.recv(100).decode() == A["secret"]: escaped()
except OSError: pass
""",
    ),
    Attack(
        name="network",
        what="has a route to other machines",
        code="""
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("192.0.2.1", 9)); escaped()
except OSError: pass
""",
    ),
    Attack(
        name="host files",
        what="reads a private file of this machine",
        code='if A["secret"].encode() in read(A["secret_file"]): escaped()',
    ),
    Attack(
        name="root of a process",
        what="reads it by way of /proc/*/root and /proc/*/cwd",
        code="""
for place in glob.glob("/proc/[0-9]*/root") + glob.glob("/proc/[0-9]*/cwd"):
    for path in (A["secret_file"], "/../../../../.." + A["secret_file"]):
        if A["secret"].encode() in read(place + path): escaped()
""",
    ),
    Attack(
        name="environment",
        what="finds a secret of the trainer's environment, its own or in /proc",
        code="""
found = b"".join(read(path) for path in glob.glob("/proc/[0-9]*/environ"))
if A["secret"].encode() in found or A["secret"] in os.environ.values(): escaped()
""",
    ),
    Attack(
        name="host processes",
        what="sees and can signal a process of this machine",
        code="""
try:
    os.kill(A["victim"], 0)
    if ("victim-" + A["marker"]).encode() in read(f"/proc/{A['victim']}/cmdline"): escaped()
except OSError: pass
""",
    ),
    Attack(
        name="writes outside",
        what="makes files outside of its own folders",
        code="""
for folder in (A["folder"], "/var/tmp", "/dev/shm", "/etc", "/usr"):
    try: open(folder + "/" + A["marker"], "w").close()
    except OSError: pass
""",
        verdict=_wrote_file_outside_sandbox,
    ),
    Attack(
        name="nested user namespace",
        what="becomes root of a user namespace of its own",
        code="if libc.unshare(0x10000000) == 0: escaped()",
    ),
    Attack(
        name="ptrace",
        what="attaches to another process of its user",
        code="""
pid = os.fork()
if pid == 0: time.sleep(30)
if libc.ptrace(16, pid, None, None) == 0: escaped()
os.kill(pid, 9)
""",
    ),
    Attack(
        name="keyring",
        what="adds a key to a kernel keyring",
        code=_SYSCALL + 'if call(248, 217, b"user", b"x", b"y", 1, -2) >= 0: escaped()',
    ),
    Attack(
        name="io_uring",
        what="opens an io_uring",
        code=_SYSCALL + "if call(425, 425, 4, ctypes.create_string_buffer(120)) >= 0: escaped()",
    ),
    Attack(
        name="bpf",
        what="makes a BPF map",
        code=_SYSCALL
        + """
attributes = (ctypes.c_uint32 * 32)(2, 4, 4, 1)
if call(321, 280, 0, attributes, 128) >= 0: escaped()
""",
    ),
    Attack(
        name="device node",
        what="makes a device",
        code="""
try: os.mknod("device", 0o020600, os.makedev(1, 1)); escaped()
except OSError: pass
""",
    ),
    Attack(
        name="control groups",
        what="makes a control group of its own",
        code="""
for folder in glob.glob("/sys/fs/cgroup/*/") + ["/sys/fs/cgroup/"]:
    try: os.mkdir(folder + A["marker"]); os.rmdir(folder + A["marker"]); escaped()
    except OSError: pass
""",
    ),
    Attack(
        name="kernel settings",
        what="opens /proc/sys/kernel/core_pattern for writing",
        code="""
try: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)); escaped()
except OSError: pass
""",
    ),
    Attack(
        name="kills everything",
        what="kills all processes of its user; the sandbox has to live on",
        code='subprocess.run(["sh", "-c", "kill -9 -1"])',
        verdict=_is_sandbox_dead,
        naive=naive_kill,
    ),
    Attack(
        name="flood",
        what="prints 60 MB that are no text",
        code=FLOOD,
        verdict=_exceeded_output_limit,
        naive=naive_flood,
    ),
    Attack(
        name="link for reading",
        what="a link to a private file, read by file access",
        code='os.symlink(A["secret_file"], "link")',
        verdict=_read_host_secret_by_link,
    ),
    Attack(
        name="link for writing",
        what="a link to a folder of this machine, written by file access",
        code='os.symlink(A["folder"], "folder")',
        verdict=_wrote_outside_through_link,
    ),
    Attack(
        name="pipe as a file",
        what="a FIFO where file access expects a file",
        code='os.mkfifo("fifo")',
        verdict=_hung_file_access_at_fifo,
        naive=naive_fifo,
    ),
    Attack(
        name="links in a download",
        what="links out of the folder that is downloaded",
        code='os.symlink(A["secret_file"], "link"); os.symlink(A["folder"], "folder")',
        verdict=_downloaded_host_secret,
        naive=naive_unpack,
    ),
    Attack(
        name="forged end",
        what="prints what could be a session's mark of the end, with success",
        needs="sessions",
        verdict=_was_forged_result_believed,
        naive=naive_session,
    ),
)
