"""What attacks aim at on this machine, and what their code begins with."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from agentrl.sandboxes import Limits, SandboxOptions

LIMITS: Final = Limits(
    memory_bytes=128 << 20,
    processes=40,
    disk_bytes=16 << 20,
    files=1000,
    output_bytes=1 << 16,
    timeout_s=20,
    max_timeout_s=30,
)

HEAD: Final = """
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
            threading.Thread(target=self._serve_secret, args=(listener,), daemon=True).start()
        argv = ["sh", "-c", "sleep 600 & wait", f"victim-{self.marker}"]
        self._victim = subprocess.Popen(argv, start_new_session=True)
        return self

    def _serve_secret(self, listener: socket.socket) -> None:
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
        while found := [p for p in psutil.process_iter(["cmdline"]) if self._is_live_attack(p)]:
            if time.monotonic() > deadline:
                return found
            time.sleep(0.05)
        return []

    def _is_live_attack(self, process: psutil.Process) -> bool:
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


def attack_options(backend: str = "unsafe-local") -> SandboxOptions:
    """Options with limits so small that attacks need not be large."""
    return SandboxOptions(backend=backend, limits=LIMITS)
