"""The process that forks workers, kills them with all that they started, and reaps them.

It has one thread and imports little, so that a fork is safe and takes milliseconds. Orphans below
it become its children (it is a subreaper, and so is each worker), so nothing escapes by a double
fork or by a session of its own.
"""

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, cast

from agentrl.workers.worker import serve

STATUS: Final = struct.Struct("<8si")
"""The last bytes of a worker's stream: MAGIC and its wait status, written when it is reaped."""
MAGIC: Final = b"\0reaped\0"
MESSAGE_BYTES: Final = 1 << 17
OWNER_POLL_MS: Final = 1000

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


@dataclass(frozen=True, slots=True)
class _Child:
    number: int
    connection: socket.socket
    """The worker's end, kept open until the worker is reaped: only then the parent sees its end."""


def main(control_fd: int, owner: int, preload: Iterable[str]) -> None:
    """Serve `spawn` and `kill` messages until the owner closes the socket or is gone."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in preload:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    _Template(control, owner).run()


class _Template:
    def __init__(self, control: socket.socket, owner: int) -> None:
        self._control = control
        self._owner = owner
        self._children: dict[int, _Child] = {}  # by process id
        self._wake, wake_end = socket.socketpair()
        for end in (self._wake, wake_end):
            end.setblocking(False)
        self._wake_end = wake_end

    def run(self) -> None:
        signal.signal(signal.SIGCHLD, _ignore_signal)
        # A scheduler may send it to every process of a job; this one ends when its owner does.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while os.getppid() == self._owner:
            ready = {fd for fd, _ in poll.poll(OWNER_POLL_MS)}
            if self._wake.fileno() in ready:
                self._wake.recv(4096)
            self._reap_ended_processes()
            if self._control.fileno() in ready and not self._execute_owner_message():
                break
        self._kill_and_reap_all_workers()

    def _execute_owner_message(self) -> bool:
        """Do what one message asks for; False when the owner has hung up."""
        data, fds, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        if not data:
            return False
        message = json.loads(data)
        if message["do"] == "spawn":
            self._fork_worker(message, fds[0])
        elif message["do"] == "kill":
            for pid, child in self._children.items():
                if child.number == message["number"]:
                    _kill_process_group(pid)
        return bool(message["do"] != "end")

    def _fork_worker(self, message: dict[str, object], fd: int) -> None:
        connection = socket.socket(fileno=fd)
        template = os.getpid()
        pid = os.fork()
        if pid == 0:
            _turn_fork_into_worker(connection, message, template)
        self._children[pid] = _Child(int(str(message["number"])), connection)

    def _reap_ended_processes(self) -> None:
        """Reap what has ended; with a worker goes all that it started."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            child = self._children.pop(found.si_pid, None)
            status = _reap_worker_group(found.si_pid) if child else os.waitpid(found.si_pid, 0)[1]
            if child is not None:
                self._kill_orphans_of_dead_workers()
                with child.connection, contextlib.suppress(OSError):
                    child.connection.send(STATUS.pack(MAGIC, status), socket.MSG_DONTWAIT)

    def _kill_orphans_of_dead_workers(self) -> None:
        """Kill our children that are no workers: what dead workers left behind."""
        while strays := [pid for pid in _list_child_process_ids() if pid not in self._children]:
            for pid in strays:
                _kill_process_if_alive(pid)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _kill_and_reap_all_workers(self) -> None:
        for pid in self._children:
            _kill_process_group(pid)
        for pid in tuple(self._children):
            _reap_worker_group(pid)
        self._children.clear()
        self._kill_orphans_of_dead_workers()


def _ignore_signal(signal_number: int, frame: FrameType | None) -> None:
    """A handler that is there so that the signal wakes the loop."""


def _turn_fork_into_worker(
    connection: socket.socket, message: dict[str, object], template: int
) -> NoReturn:
    """Turn the forked copy of the template into a worker."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if os.getppid() != template:
            os._exit(0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _close_files_but_connection(connection)
        sys.path[:] = cast("list[str]", message["path"])
        memory = message["memory_bytes"]
        if isinstance(memory, int):
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        serve(connection, int(str(message["max_result_bytes"])))
        os._exit(0)
    finally:
        os._exit(1)


def _close_files_but_connection(connection: socket.socket) -> None:
    """Close all but the connection; no input; what user code prints goes to standard error."""
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd != connection.fileno():
            with contextlib.suppress(OSError):
                os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    cast("io.TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)


def _reap_worker_group(leader: int) -> int:
    """Kill and reap the group of a worker; the leader's wait status."""
    _kill_process_group(leader)
    status = 0
    while True:
        try:
            pid, code = os.waitpid(-leader, 0)
        except ChildProcessError:
            return status
        if pid == leader:
            status = code


def _kill_process_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    _kill_process_if_alive(leader)


def _kill_process_if_alive(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _list_child_process_ids() -> list[int]:
    """Process ids; empty on kernels that do not list them."""
    pid = os.getpid()
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except FileNotFoundError:
        return []
