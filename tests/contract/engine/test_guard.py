"""The guard, around a stand-in for a server: nothing of it is left, however its owner ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agentrl.engine.servers import process, watchdog

GUARD = watchdog.__file__
STUBBORN = "trap '' TERM; sleep 600 & echo $! >> {file}; sleep 600 & echo $! >> {file}; wait; wait"
OBEDIENT = "sleep 600 & echo $! >> {file}; echo $$ >> {file}; exec sleep 600"


def owner(script: str, grace_s: float) -> "subprocess.Popen[bytes]":
    """A process that owns a guard, and waits for it."""
    code = (
        "import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-I', sys.argv[1], "
        "str(os.getpid()), *sys.argv[2:]], start_new_session=True); print(p.pid, flush=True); "
        "sys.exit(p.wait())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, GUARD, str(grace_s), "bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def gone(file: Path) -> bool:
    return not any(psutil.pid_exists(pid) for pid in pids(file))


@pytest.mark.parametrize("script", [OBEDIENT, STUBBORN])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_all_processes_end_with_their_owner(
    tmp_path: Path, script: str, end: signal.Signals
) -> None:
    file = tmp_path / "pids"
    process = owner(script.format(file=file), grace_s=0.5)
    until(lambda: len(pids(file)) == 2)
    process.send_signal(end)
    process.communicate()
    until(lambda: gone(file))


def test_all_processes_end_when_the_guard_is_told_to(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    process = owner(STUBBORN.format(file=file), grace_s=0.5)
    assert process.stdout is not None
    guarding = int(process.stdout.readline())
    until(lambda: len(pids(file)) == 2)
    os.kill(guarding, signal.SIGTERM)
    process.communicate(timeout=20)
    assert gone(file)


def test_what_a_dead_server_leaves_is_ended_and_its_status_passed_on(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    process = owner(f"sleep 600 & echo $! >> {file}; exit 7", grace_s=5)
    process.communicate(timeout=20)
    assert process.returncode == 7
    assert len(pids(file)) == 1
    assert gone(file)


def test_secrets_reach_the_server_by_a_pipe_and_nobody_else() -> None:
    script = 'echo "$@"; stat -c %a "$2"; cat "$2"; printf "unfinished word"; exit 3'
    done = subprocess.run(
        [sys.executable, "-I", GUARD, str(os.getpid()), "5", "bash", "-c", script, "server"],
        input='{"api-key": "word", "admin-api-key": "other"}',
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    arguments, mode, content = done.stdout.split("\n", 2)
    option, file = arguments.split()
    assert (done.returncode, option, mode) == (3, "--config", "600")
    assert content == '{"api-key": "***", "admin-api-key": "***"}unfinished ***'
    assert not Path(file).exists()


def test_a_guard_that_is_killed_leaves_no_secrets(tmp_path: Path) -> None:
    script = 'read -r line <"$2"; echo "read ${#line}"; exec sleep 600'
    with subprocess.Popen(
        [sys.executable, "-I", GUARD, str(os.getpid()), "5", "bash", "-c", script, "server"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as guarding:
        assert guarding.stdin is not None
        assert guarding.stdout is not None
        with guarding.stdin as pipe:
            pipe.write(b'{"api-key": "word"}')
        said = guarding.stdout.readline()
        guarding.kill()
    assert said == b"read 19\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tail", "status", "said"),
    [
        ("OSError: [Errno 98] address already in use\n", 1, "its port 7 is taken"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried\n", 1, "the memory does not suffice"),
        (
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9\n",
            1,
            "the memory does not suffice; lower engine.sglang.kv_tokens",
        ),
        (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-frac\n",
            1,
            "the memory does not suffice for the cache; lower engine.sglang.kv_tokens or raise",
        ),
        (
            "Traceback (most recent call last):\n  File ...\nValueError: no such model\n"
            "nanobind: leaked 3 instances!\n",
            1,
            "ValueError: no such model",
        ),
        ("[2026-01-01 10:00:00 TP0] RuntimeError: bad shape\n", 1, "RuntimeError: bad shape"),
        ("serve.py: error: unrecognized arguments: --foo\n", 2, "unrecognized arguments: --foo"),
        (
            "pydantic.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, Unknown method: x. Use y. [type=value_error, input_value=A(), input]\n"
            "    For further information visit https://errors.pydantic.dev/2/v/value_error\n",
            1,
            "Value error, Unknown method: x. Use y.",
        ),
        (
            "(Worker pid=4) ERROR 11-30 13:11:12 [multiproc_executor.py:1063] ValueError: too big\n"
            "(APIServer pid=1) RuntimeError: Engine core failed. See root cause above.\n",
            1,
            "ValueError: too big",
        ),
        ("FooError: harmless\n[10:00] ready to roll!\nserving\n", 137, "it was killed by force"),
        ("loading\n", 137, "it was killed by force"),
        ("loading\n", 3, "it ended with status 3 and no message"),
    ],
)
def test_a_failed_start_is_explained_by_the_logs_tail(tail: str, status: int, said: str) -> None:
    assert said in process.explain_log(tail, 7, status, "sglang")
