"""The parent's handle of a template process: spawn, kill, close."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agentrl.workers.channel import Channel

_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from agentrl.workers.fork_server import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])"
)
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_CLOSE_S: Final = 10.0


class Spawner:
    """Starts the template at the first spawn, and again if it has died.

    Not thread-safe: the pool holds its lock. Only `kill` may be called from any thread, since
    a message is one packet.
    """

    def __init__(
        self,
        *,
        memory_bytes: int | None,
        max_result_bytes: int,
        preload: Sequence[str],
        deadline_s: float,
    ) -> None:
        """A process that was stopped for `deadline_s` in a call is killed."""
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._max_result_bytes = max_result_bytes
        self._preload = tuple(preload)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = 0
        self._spawned = 0

    def spawn(self) -> Channel:
        """Ask for a new worker; it says when it is ready."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start_fork_server()
        self._spawned += 1
        ours, theirs = socket.socketpair()
        channel = Channel(
            ours,
            self._spawned,
            self._max_result_bytes,
            template=process.pid,
            deadline_s=self._deadline_s,
        )
        message: dict[str, object] = {
            "do": "spawn",
            "number": channel.number,
            "path": _make_import_path_absolute(channel.path),
            "memory_bytes": self._memory_bytes,
            "max_result_bytes": self._max_result_bytes,
        }
        with theirs:
            self._send_message_to_fork_server(message, theirs)
        return channel

    def kill(self, channel: Channel) -> None:
        """Kill the worker with all that it started; its stream ends when it is reaped."""
        self._send_message_to_fork_server({"do": "kill", "number": channel.number})

    def close(self) -> None:
        """End the template and all workers and wait for it; a second call does nothing."""
        process, self._process = self._process, None
        control, self._control = self._control, None
        if process is None or control is None:
            return
        if self._owner == os.getpid():
            with contextlib.suppress(OSError):
                control.send(json.dumps({"do": "end"}).encode())
            try:
                process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        control.close()

    def _start_fork_server(self) -> "subprocess.Popen[bytes]":
        self.close()
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = json.dumps(_make_import_path_absolute(tuple(sys.path)))
        with theirs:
            arguments = (path, str(theirs.fileno()), str(self._owner), *self._preload)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                # A pool is parallel by processes; and a process with threads must not fork.
                env={**os.environ, **dict.fromkeys(_THREADS, "1")},
            )
        return self._process

    def _send_message_to_fork_server(
        self, message: dict[str, object], connection: socket.socket | None = None
    ) -> None:
        """Send a message; a template that is gone shows in its workers' streams."""
        if self._control is None:
            return
        fds = [] if connection is None else [connection.fileno()]
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)


def _make_import_path_absolute(path: Sequence[str]) -> list[str]:
    """The import path for a process that may be elsewhere."""
    return [entry or str(Path.cwd()) for entry in path]
