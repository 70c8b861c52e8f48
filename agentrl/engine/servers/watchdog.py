"""A small process between us and a server: the server ends when its owner does, however it does.

    owner ──starts──▶ guard ──starts──▶ server ──spawns──▶ scheduler, detokenizer, ...

The guard looks for its owner twice a second. It ends the server's whole process group when the
owner is gone or asks with SIGTERM, first gently, then by force, and passes on the exit status. If
the guard itself is killed, the kernel kills the server's first process and the server's own parent
checks end the rest. It runs as `python watchdog.py OWNER_PID GRACE_S COMMAND...` and needs nothing
but the standard library.

Its input is a JSON object of secret options, or nothing. They reach the server as its `--config`,
since everyone sees the arguments of a command: by a named pipe that goes once it is read, so that
they lie in no file, even if the guard is killed. Because the server prints its options, its output
passes through here, without the secrets.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

_LOOK_S = 0.5
_LAST_WORDS_S = 5.0
"""How long the output of a server that ended may take, should a stray process hold it open."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(owner: int, grace_s: float, command: list[str], secrets: dict[str, str]) -> int:
    """Run the command until it ends, is told to, or the owner is gone; its exit status."""
    pipe = Path(tempfile.gettempdir(), f"agentrl-{os.urandom(8).hex()}.yaml")
    if secrets:
        os.mkfifo(pipe, 0o600)
        command = [*command, "--config", str(pipe)]
    try:
        return _run_server_under_watch(owner, grace_s, command, secrets, pipe)
    finally:
        pipe.unlink(missing_ok=True)


def _run_server_under_watch(
    owner: int, grace_s: float, command: list[str], secrets: dict[str, str], pipe: Path
) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    # What the server leaves behind becomes our child, so that we see the last of it.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wanted = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)

    def in_child() -> None:  # this process has one thread, so forking is safe
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted)

    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=in_child,
    )
    words = [secret.encode() for secret in secrets.values()]
    copying = threading.Thread(
        target=_copy_without_secrets, args=(server.stdout, words), daemon=True
    )
    copying.start()
    if secrets:
        threading.Thread(
            target=_write_secrets_to_pipe, args=(pipe, json.dumps(secrets)), daemon=True
        ).start()
    while server.poll() is None and os.getppid() == owner:
        if signal.sigtimedwait(wanted, _LOOK_S) is not None:
            break
    _kill_server_group(server, grace_s)
    copying.join(_LAST_WORDS_S)
    return server.wait()


def _write_secrets_to_pipe(pipe: Path, text: str) -> None:
    """Wait until the server opens the pipe, and let nobody else open it."""
    with contextlib.suppress(BrokenPipeError), pipe.open("w", encoding="utf-8") as file:
        pipe.unlink(missing_ok=True)
        file.write(text)  # JSON, which YAML can read


def _copy_without_secrets(output: IO[bytes], secrets: list[bytes]) -> None:
    """Pass on the lines of a server, without its secrets."""
    for line in output:
        for secret in secrets:
            line = line.replace(secret, b"***")
        os.write(sys.stdout.fileno(), line)


def _kill_server_group(server: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """End the process group: SIGTERM to its leader, SIGKILL to whoever is left after `grace_s`."""
    if server.poll() is None:
        server.terminate()
    deadline = time.monotonic() + grace_s
    # A leader that died by itself may have left the others: they get no grace.
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    while _is_process_group_alive(server.pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


def _is_process_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    given = json.loads(sys.stdin.read() or "{}")
    status = main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:], given)
    sys.exit(status if status >= 0 else 128 - status)
