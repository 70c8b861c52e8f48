"""A finished process ends, whatever user code left running."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.signals import IN_BACKGROUND, IN_FOREGROUND

ENV = """
import threading, time
from agentrl.envs import ToolEnv

class Forgetful(ToolEnv):
    tasks = ({"prompt": "p"},)

    async def setup(self):
        threading.Thread(target=time.sleep, args=(600,), name="forgotten").start()

    def score(self, answer):
        return 0.0
"""


def test_a_forgotten_thread_does_not_keep_the_process(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(ENV)
    command = [sys.executable, "-m", "agentrl", "env", "check", "env.py:Forgetful", "--tasks", "1"]
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1  # the check itself names the leak
    assert "more threads" in done.stdout
    assert "forgotten" in done.stderr
    assert time.monotonic() - started < 40


QUITTER = """
import os
from agentrl.envs import ToolEnv

class Quitter(ToolEnv):
    tasks = ({"prompt": "p"},)

    def reply(self, text):
        os._exit(0)

    def score(self, answer):
        return 0.0
"""


def test_an_environment_that_ends_the_process_is_not_fit(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(QUITTER)
    command = [sys.executable, "-m", "agentrl", "env", "check", "env.py:Quitter", "--tasks", "1"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1
    assert "ended the process" in done.stderr


def test_sigterm_ends_a_run_that_was_started_in_the_background(tmp_path: Path) -> None:
    command = [*IN_BACKGROUND, sys.executable, "-m", "agentrl", "train", "--env", "calculator"]
    process = subprocess.Popen(
        [*command, "--name", "a"],
        cwd=tmp_path,
        env={**os.environ, "AGENTRL_CACHE": str(tmp_path / "cache")},  # no warm start of before
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()  # it has begun
    process.send_signal(signal.SIGINT)  # for the jobs in the foreground
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert said == (
        "\nagentrl: ended by SIGTERM; before the first step; go on with: agentrl train --resume a\n"
    )
    events = (tmp_path / "runs" / "a" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line).get("phase") for line in events] == [None, "warm start", "warm start"]


SCRIPT = str(Path(sys.executable).with_name("agentrl"))


@pytest.mark.parametrize("command", [["-m", "agentrl"], [SCRIPT]])
def test_ctrl_c_while_it_loads_is_no_traceback(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "gymnasium.py").write_text(
        "import time\nprint('loads', flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen(
        [*IN_FOREGROUND, sys.executable, *command, "env", "check", "calculator"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loads\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=50)
    assert (process.returncode, said) == (130, "\nagentrl: interrupted\n")


WAITING = """
import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from agentrl.envs import ToolEnv

@asynccontextmanager
async def place():
    yield

@asynccontextmanager
async def lease():
    async with AsyncExitStack() as places:
        await places.enter_async_context(place())
        try:
            yield
        finally:
            await asyncio.sleep(0)

class Waiting(ToolEnv):
    tasks = ({"prompt": "p"},)

    async def setup(self):
        await self.resources.enter_async_context(lease())

    def reply(self, text):
        print("waiting", flush=True)
        time.sleep(60)

    def score(self, answer):
        return 0.0
"""


@pytest.mark.parametrize(
    ("blow", "code", "said"),
    [
        (signal.SIGINT, 130, "\nagentrl: interrupted\n"),
        (signal.SIGTERM, 143, "\nagentrl: ended by SIGTERM\n"),
    ],
)
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_check_that_is_interrupted_says_so_in_one_line(
    tmp_path: Path, blow: signal.Signals, code: int, said: str, whole_group: bool
) -> None:
    (tmp_path / "env.py").write_text(WAITING)
    command = [*IN_FOREGROUND, sys.executable, "-m", "agentrl", "env", "check", "env.py:Waiting"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    if whole_group:
        os.killpg(process.pid, blow)
    else:
        os.kill(process.pid, blow)
    _, heard = process.communicate(timeout=50)
    assert (process.returncode, heard) == (code, said)
