"""A finished process ends, whatever user code left running."""

import subprocess
import sys
import time
from pathlib import Path

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


def test_sigterm_ends_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentrl", "train", "--env", "calculator", "--steps", "500"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()  # it has begun
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the last checkpoint" in said
