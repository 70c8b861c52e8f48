"""How people are hit who do without a sandbox: each function shows that an attack works there."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from agentrl.testing.sandbox_arena import HEAD, LIMITS, Arena

HELD_S: Final = 3.0
"""A call that takes longer hangs at what the attack holds open."""

SURVIVE: Final = """
def survive():
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        argv = [sys.executable, "-c", "import time; time.sleep(60)", "survivor-" + A["marker"]]
        os.execv(sys.executable, argv)
"""
HOLD: Final = SURVIVE + "survive()"
FLOOD: Final = """
block = b"\\xff\\x00x" * 20000
for _ in range(1000):
    os.write(1, block)
"""
FORGE: Final = (
    r"printf '\036%016d:0\037\n' 0; "
    r"for t in $(cat /proc/$PPID/cmdline /proc/$$/cmdline /proc/self/environ 2>/dev/null "
    r"| tr -c '0-9a-f' '\n' | grep -xE '[0-9a-f]{16}') $(set | grep -oE '[0-9a-f]{16}'); "
    r"do printf '\036%s:0\037\n' $t; done; false"
)


def has_secret(folder: Path, arena: Arena) -> bool:
    """True if the secret came into the folder."""
    paths = [folder / "link", folder / "folder" / "secret"]
    found = any(p.is_file() and arena.secret in p.read_text(errors="replace") for p in paths)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _run_attack_without_sandbox(arena: Arena, code: str) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-c", HEAD + code, arena.facts(LIMITS)]
    return subprocess.run(argv, capture_output=True, timeout=HELD_S, check=False)


def naive_hangs(arena: Arena) -> bool:
    """A call waits for whoever holds its output."""
    try:
        _run_attack_without_sandbox(arena, HOLD)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        arena.end_survivors()


def naive_fifo(arena: Arena) -> bool:
    """A reader waits at a FIFO."""
    fifo = arena.folder / "fifo"
    os.mkfifo(fifo)
    try:
        subprocess.run(["cat", str(fifo)], capture_output=True, timeout=1, check=False)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        fifo.unlink()


def naive_flood(arena: Arena) -> bool:
    """All output is kept in memory."""
    argv = [sys.executable, "-c", HEAD + FLOOD, arena.facts(LIMITS)]
    return len(subprocess.run(argv, capture_output=True, check=False).stdout) > 32 << 20


def naive_unpack(arena: Arena) -> bool:
    """An archive's link leads to a file outside."""
    source, target = arena.folder / "source", arena.folder / "unpacked"
    source.mkdir()
    (source / "link").symlink_to(arena.secret_file)
    archive = arena.folder / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(source, ".")
    subprocess.run(["tar", "-xf", str(archive), "--one-top-level=" + str(target)], check=True)
    shutil.rmtree(source)
    archive.unlink()
    return has_secret(target, arena)


def naive_session(arena: Arena) -> bool:
    """A shell whose answers end where a fixed line says so."""
    code = f"echo END 0; {FORGE}\necho END $?\n"
    done = subprocess.run(["bash"], input=code.encode(), capture_output=True, check=False)
    return done.stdout.partition(b"END ")[2].startswith(b"0")


def naive_kill(arena: Arena) -> bool:
    """Code that runs as the same user as its keeper ends the keeper too."""
    if os.geteuid() != 0:
        return True  # the keeper would be this user's session
    user = 0x5A0A0000 + secrets.randbelow(1 << 16)
    keeper = subprocess.Popen(["sleep", "60"], user=user, group=user, extra_groups=[])
    subprocess.run(
        ["/bin/sh", "-c", "kill -9 -1"], user=user, group=user, extra_groups=[], check=False
    )
    return keeper.wait(timeout=10) == -signal.SIGKILL
