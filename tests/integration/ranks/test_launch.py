"""The script that `agentrl launch slurm` writes is run; an `srun` that starts processes here."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from agentrl.cli.dispatch import main

PROGRAMS = {
    "srun": """#!/bin/bash
echo "srun $*" >> "$CALLS"
tasks=1
while [[ $1 == --* ]]; do
  [[ $1 == --ntasks=* ]] && tasks=${1#*=}
  shift
done
trap 'kill -TERM $(jobs -p); wait; exit 143' TERM
for ((i = 0; i < tasks; i++)); do "$@" & done
wait
""",
    "scontrol": '#!/bin/bash\necho "scontrol $*" >> "$CALLS"\n',
}
SLOW = """
import asyncio
from pathlib import Path

from agentrl.envs import ToolEnv
from agentrl.types import Score, Task

HERE = Path(__file__).parent


class Slow(ToolEnv):
    tasks = [Task(prompt=f"Task {i}", answer=i) for i in range(4)]

    async def score(self, answer: str) -> Score:
        while any((HERE / "runs/night/checkpoints").glob("step-*")) and not (HERE / "go").exists():
            (HERE / "waits").touch()
            await asyncio.sleep(0.05)
        return Score(value=min(1.0, len(answer) / 40))
"""
RUN = """
name = "night"
steps = 3
threads = 1
rollout = {tasks_per_step = 2, group_size = 2, max_new_tokens = 8}
checkpoint = {every = 1}
ray = {players = 0}
[[env]]
name = "slow.py:Slow"
"""
NODES = ["--nodes", "2", "--cpus-per-node", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> Iterator[Path]:
    """Where a script is: with programs that stand for Slurm's, and a job's variables."""
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "run.toml").write_text(f'model = "{tiny_folder}"\n{RUN}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("SLURM_JOB_ID", str(os.getpid()))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield tmp_path
    for process in ray_processes():
        with suppress(psutil.Error):
            process.kill()
    for left in Path("/tmp").glob(f"agentrl-{os.getpid()}-*"):
        shutil.rmtree(left, ignore_errors=True)


def ray_processes() -> list[psutil.Process]:
    """Those of the job's own Ray cluster."""
    temp = f"/tmp/agentrl-{os.getpid()}-"
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(temp in word for word in process.cmdline()):
                found.append(process)
    return found


def script_of(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert main(["launch", "slurm", "run.toml", "--print", *options]) == 0
    return capsys.readouterr().out


def started(script: str, folder: Path) -> "subprocess.Popen[bytes]":
    (folder / "job.sh").write_text(script)
    with (folder / "log").open("a") as log:
        return subprocess.Popen(["bash", "job.sh"], cwd=folder, stdout=log, stderr=log)


def wait_until(reached: Callable[[], bool], job: "subprocess.Popen[bytes]", log: Path) -> None:
    ends = time.monotonic() + 120
    while not reached():
        assert job.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < ends, log.read_text()[-3000:]
        time.sleep(0.1)


def steps_of(folder: Path) -> list[int]:
    lines = (folder / "runs" / "night" / "metrics.jsonl").read_bytes().splitlines()
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.timeout(500)
def test_a_job_whose_time_is_up_is_queued_again_and_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, log, calls = script_of(capsys, *NODES), folder / "log", folder / "calls"
    job = started(script, folder)
    wait_until((folder / "waits").exists, job, log)  # in the second step
    job.send_signal(signal.SIGUSR1)
    wait_until(lambda: "SIGTERM: stopping after this step" in log.read_text(), job, log)
    (folder / "go").touch()
    assert job.wait(90) == 128 + signal.SIGTERM, log.read_text()[-3000:]
    assert f"scontrol requeue {os.getpid()}" in calls.read_text()
    assert ray_processes() == []
    assert steps_of(folder) == [1, 2]
    job = started(script, folder)
    assert job.wait(200) == 0, log.read_text()[-3000:]
    assert steps_of(folder) == [1, 2, 3]
    assert calls.read_text().count("scontrol") == 1
    assert ray_processes() == []
    starts = [line for line in calls.read_text().splitlines() if "ray start" in line]
    assert ["--head" in line for line in starts] == [True, False] * 2
    assert not list(Path("/tmp").glob(f"agentrl-{os.getpid()}-*"))
