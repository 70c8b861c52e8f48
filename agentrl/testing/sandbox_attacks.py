"""Attacks on sandboxes: what hostile code tries, and how it is known that it got through.

For a backend of your own:

    with Arena() as arena:
        async with MySandbox(attack_options()) as sandbox:
            for attack in ATTACKS:
                assert not await attack.gets_through(sandbox, arena)

An attack that is contained because it never worked proves nothing, so each is first shown to get
through where nothing contains it: `works_uncontained`.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from agentrl.sandboxes import (
    Capability,
    ExecResult,
    FileAccessError,
    Limits,
    Sandbox,
    SandboxOptions,
)
from agentrl.sandboxes.local import UnsafeLocalSandbox

LIMITS: Final = Limits(
    memory_bytes=128 << 20,
    processes=40,
    disk_bytes=16 << 20,
    files=1000,
    output_bytes=1 << 16,
    timeout_s=20,
    max_timeout_s=30,
)
_HELD_S: Final = 3.0
"""A call that takes longer hangs at what the attack holds open."""

_HEAD: Final = """
import ctypes, glob, json, os, signal, socket, subprocess, sys, time
A = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def escaped(): print("ESCAPED", flush=True)
def read(path):
    try:
        with open(path, "rb") as file: return file.read(100000)
    except OSError: return b""
"""


class Arena:
    """What attacks aim at on this machine: a secret, a listener, a process, folders."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        self.marker = f"agentrl-attack-{secrets.token_hex(8)}"
        self.folder = Path(tempfile.mkdtemp(prefix="agentrl-arena-"))
        self.secret_file = self.folder / "secret"
        self._listeners = (
            socket.create_server(("127.0.0.1", 0)),
            socket.socket(socket.AF_UNIX),
        )
        self.port: int = self._listeners[0].getsockname()[1]
        self._victim: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.chmod(0o777)
        self.secret_file.write_text(self.secret)
        self.secret_file.chmod(0o600)
        os.environ["AGENTRL_ATTACK_SECRET"] = self.secret
        self._listeners[1].bind(f"\0{self.marker}")
        self._listeners[1].listen()
        for listener in self._listeners:
            threading.Thread(target=self._greet, args=(listener,), daemon=True).start()
        argv = ["sh", "-c", "sleep 600 & wait", f"victim-{self.marker}"]
        self._victim = subprocess.Popen(argv, start_new_session=True)
        return self

    def _greet(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(self.secret.encode())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.environ.pop("AGENTRL_ATTACK_SECRET", None)
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self._victim is not None:
            os.killpg(self._victim.pid, signal.SIGKILL)
            self._victim.wait()
        self.end_survivors()
        shutil.rmtree(self.folder, ignore_errors=True)

    def facts(self, limits: Limits) -> str:
        """What the code of an attack is told, as JSON."""
        assert self._victim is not None
        return json.dumps(
            {
                "memory": limits.memory_bytes,
                "processes": limits.processes,
                "disk": limits.disk_bytes,
                "files": limits.files,
                "marker": self.marker,
                "secret": self.secret,
                "secret_file": str(self.secret_file),
                "folder": str(self.folder),
                "port": self.port,
                "victim": self._victim.pid,
            }
        )

    def survivors(self, wait_s: float = 1.0) -> list[psutil.Process]:
        """Processes of an attack that still run on this machine after a moment."""
        deadline = time.monotonic() + wait_s
        while found := [p for p in psutil.process_iter(["cmdline"]) if self._is_attack(p)]:
            if time.monotonic() > deadline:
                return found
            time.sleep(0.05)
        return []

    def _is_attack(self, process: psutil.Process) -> bool:
        words: list[str] = process.info["cmdline"] or []
        with contextlib.suppress(psutil.Error):
            return f"survivor-{self.marker}" in words and process.status() != "zombie"
        return False

    def end_survivors(self) -> bool:
        """Kill what is left; True if there was something."""
        found = self.survivors()
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return bool(found)


Verdict = Callable[[Sandbox, Arena, ExecResult], Awaitable[bool]]


async def _said_so(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
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
    verdict: Verdict = _said_so
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
        argv = ("python3", "-c", _HEAD + self.code, arena.facts(sandbox.limits))
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


def attack_options(backend: str = "unsafe-local") -> SandboxOptions:
    """Options with limits so small that attacks need not be large."""
    return SandboxOptions(backend=backend, limits=LIMITS)


# Verdicts that look from outside.


async def _left_processes(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    return await asyncio.to_thread(arena.end_survivors)


async def _held_the_call(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    return result.duration_s > _HELD_S


async def _wrote_outside(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    found = False
    for folder in (arena.folder, Path("/var/tmp"), Path("/dev/shm"), Path("/etc"), Path("/usr")):
        written = folder / arena.marker
        found |= written.exists()
        written.unlink(missing_ok=True)
    return found


async def _flooded(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    return len(result.stdout) > 2 * sandbox.limits.output_bytes


async def _read_by_link(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    with contextlib.suppress(FileAccessError):
        return arena.secret.encode() in await sandbox.read_file("link")
    return False


async def _written_by_link(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    with contextlib.suppress(FileAccessError):
        await sandbox.write_file("folder/written", b"x")
    written = arena.folder / "written"
    found = written.exists()
    written.unlink(missing_ok=True)
    return found


async def _hung_at_fifo(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    began = time.monotonic()
    with contextlib.suppress(FileAccessError):
        await sandbox.read_file("fifo")
    with contextlib.suppress(FileAccessError):
        await sandbox.write_file("fifo", b"x")
    return time.monotonic() - began > 2 * _HELD_S


async def _downloaded(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    target = arena.folder / "download"
    with contextlib.suppress(FileAccessError):
        await sandbox.download("", target)
    return await asyncio.to_thread(_has_secret, target, arena)


def _has_secret(folder: Path, arena: Arena) -> bool:
    paths = [folder / "link", folder / "folder" / "secret"]
    found = any(p.is_file() and arena.secret in p.read_text(errors="replace") for p in paths)
    shutil.rmtree(folder, ignore_errors=True)
    return found


async def _believed(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    session = await sandbox.session("bash")
    forged = await session.run(_FORGE, timeout_s=10)
    after = await session.run("echo after", timeout_s=10)
    return forged.exit_code == 0 or after.stdout != b"after\n"


async def _is_dead(sandbox: Sandbox, arena: Arena, result: ExecResult) -> bool:
    return not await sandbox.alive()


# How people are hit who do without.


def _naive_run(arena: Arena, code: str) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-c", _HEAD + code, arena.facts(LIMITS)]
    return subprocess.run(argv, capture_output=True, timeout=_HELD_S, check=False)


def _naive_hangs(arena: Arena) -> bool:
    try:
        _naive_run(arena, _HOLD)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        arena.end_survivors()


def _naive_fifo(arena: Arena) -> bool:
    fifo = arena.folder / "fifo"
    os.mkfifo(fifo)
    try:
        subprocess.run(["cat", str(fifo)], capture_output=True, timeout=1, check=False)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        fifo.unlink()


def _naive_flood(arena: Arena) -> bool:
    argv = [sys.executable, "-c", _HEAD + _FLOOD, arena.facts(LIMITS)]
    return len(subprocess.run(argv, capture_output=True, check=False).stdout) > 32 << 20


def _naive_unpack(arena: Arena) -> bool:
    source, target = arena.folder / "source", arena.folder / "unpacked"
    source.mkdir()
    (source / "link").symlink_to(arena.secret_file)
    archive = arena.folder / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(source, ".")
    subprocess.run(["tar", "-xf", str(archive), "--one-top-level=" + str(target)], check=True)
    shutil.rmtree(source)
    archive.unlink()
    return _has_secret(target, arena)


def _naive_session(arena: Arena) -> bool:
    """A shell whose answers end where a fixed line says so."""
    code = f"echo END 0; {_FORGE}\necho END $?\n"
    done = subprocess.run(["bash"], input=code.encode(), capture_output=True, check=False)
    return done.stdout.partition(b"END ")[2].startswith(b"0")


def _naive_kill(arena: Arena) -> bool:
    """Code that runs as the same user as its keeper ends the keeper too."""
    if os.geteuid() != 0:
        return True  # the keeper would be this user's session
    user = 0x5A0A0000 + secrets.randbelow(1 << 16)
    keeper = subprocess.Popen(["sleep", "60"], user=user, group=user, extra_groups=[])
    subprocess.run(
        ["/bin/sh", "-c", "kill -9 -1"], user=user, group=user, extra_groups=[], check=False
    )
    return keeper.wait(timeout=10) == -signal.SIGKILL


_SURVIVE: Final = """
def survive():
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        argv = [sys.executable, "-c", "import time; time.sleep(60)", "survivor-" + A["marker"]]
        os.execv(sys.executable, argv)
"""
_HOLD: Final = _SURVIVE + "survive()"
_FLOOD: Final = """
block = b"\\xff\\x00x" * 20000
for _ in range(1000):
    os.write(1, block)
"""
_FORGE: Final = (
    r"printf '\036%032d:0\037\n' 0; "
    r"for t in $(cat /proc/$PPID/cmdline /proc/$$/cmdline /proc/self/environ 2>/dev/null "
    r"| tr -c '0-9a-f' '\n' | grep -xE '[0-9a-f]{32}') $(set | grep -oE '[0-9a-f]{32}'); "
    r"do printf '\036%s:0\037\n' $t; done; false"
)
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
        code=_SURVIVE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); survive(); time.sleep(60)",
        timeout_s=1.5,
        verdict=_left_processes,
    ),
    Attack(
        name="daemon",
        what="leaves a daemon and ends normally",
        code=_SURVIVE + "survive(); time.sleep(0.5)",
        verdict=_left_processes,
    ),
    Attack(
        name="held pipe",
        what="leaves a child that holds the output open",
        code=_HOLD,
        verdict=_held_the_call,
        naive=_naive_hangs,
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
        verdict=_wrote_outside,
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
        verdict=_is_dead,
        naive=_naive_kill,
    ),
    Attack(
        name="flood",
        what="prints 60 MB that are no text",
        code=_FLOOD,
        verdict=_flooded,
        naive=_naive_flood,
    ),
    Attack(
        name="link for reading",
        what="a link to a private file, read by file access",
        code='os.symlink(A["secret_file"], "link")',
        verdict=_read_by_link,
    ),
    Attack(
        name="link for writing",
        what="a link to a folder of this machine, written by file access",
        code='os.symlink(A["folder"], "folder")',
        verdict=_written_by_link,
    ),
    Attack(
        name="pipe as a file",
        what="a FIFO where file access expects a file",
        code='os.mkfifo("fifo")',
        verdict=_hung_at_fifo,
        naive=_naive_fifo,
    ),
    Attack(
        name="links in a download",
        what="links out of the folder that is downloaded",
        code='os.symlink(A["secret_file"], "link"); os.symlink(A["folder"], "folder")',
        verdict=_downloaded,
        naive=_naive_unpack,
    ),
    Attack(
        name="forged end",
        what="prints what could be a session's mark of the end, with success",
        needs="sessions",
        verdict=_believed,
        naive=_naive_session,
    ),
)
