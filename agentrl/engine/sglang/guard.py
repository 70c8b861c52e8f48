"""A small process between us and a server: the server ends when its owner does, however it does.

    owner ──starts──▶ guard ──starts──▶ server ──spawns──▶ scheduler, detokenizer, ...

The guard looks for its owner twice a second. It ends the server's whole process group when the
owner is gone or asks with SIGTERM, first gently, then by force, and passes on the exit status. If
the guard itself is killed, the kernel kills the server's first process and the server's own parent
checks end the rest. It runs as `python guard.py OWNER_PID GRACE_S COMMAND...` and needs nothing but
the standard library.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

_LOOK_S = 0.5
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(owner: int, grace_s: float, command: list[str]) -> int:
    """Run the command until it ends, is told to, or the owner is gone; its exit status."""
    libc = ctypes.CDLL(None, use_errno=True)
    # What the server leaves behind becomes our child, so that we see the last of it.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wanted = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)

    def in_child() -> None:  # this process has one thread, so forking is safe
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted)

    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=in_child
    )
    while server.poll() is None and os.getppid() == owner:
        if signal.sigtimedwait(wanted, _LOOK_S) is not None:
            break
    _end(server, grace_s)
    return server.wait()


def _end(server: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """End the process group: SIGTERM to its leader, SIGKILL to whoever is left after `grace_s`."""
    if server.poll() is None:
        server.terminate()
    deadline = time.monotonic() + grace_s
    # A leader that died by itself may have left the others: they get no grace.
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    while _alive(server.pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.poll()
        _reap()
        time.sleep(0.05)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    status = main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
    sys.exit(status if status >= 0 else 128 - status)
