import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.orchestration.whereabouts import keep_status
from agentrl.schedule import Wait


def status_of(root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main(["run", "status", "mine", "--runs-dir", str(root), *more]) == 0
    return capsys.readouterr().out


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.toml").touch()
    return folder


def test_it_says_who_waits_for_whom_while_the_run_is_there(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = [Wait(f"episode 0.{i}", "engine", time.monotonic() - 90) for i in range(30)]
    with keep_status(run / "status.json", lambda: 7, lambda: waits):
        wait_for(run / "status.json")
        told = status_of(run.parent, capsys)
        found = json.loads(status_of(run.parent, capsys, "--json"))
    assert f"mine runs (process {os.getpid()} on " in told
    assert "7 steps are done" in told
    assert "  episode 0.0 waits for engine, 90." in told
    assert "  and 10 more" in told
    assert found["state"] == "running"
    assert not list(run.glob("*status*"))
    (run / "metrics.jsonl").write_text('{"step": 8}\n')
    (run / "events.jsonl").write_text('{"event": "stopped", "reason": "no space"}\n')
    told = status_of(run.parent, capsys)
    assert told == "mine does not run; 8 steps are done, the last event is stopped: no space\n"


def test_what_another_thread_changes_or_a_disk_refuses_stops_nothing(run: Path) -> None:
    asked = 0

    def waits() -> Sequence[Wait]:
        nonlocal asked
        asked += 1
        raise RuntimeError("dictionary changed size during iteration")

    with keep_status(run / "status.json", lambda: 7, waits):
        while not asked:
            time.sleep(0.01)
    assert not list(run.glob("*status*"))


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (signal.SIGKILL, "was killed after step 4; go on with: agentrl train --resume mine"),
        (signal.SIGSTOP, "mine has said nothing for 6"),
    ],
)
def test_a_process_that_is_gone_or_stopped_is_told(
    run: Path, capsys: pytest.CaptureFixture[str], sent: signal.Signals, told: str
) -> None:
    code = f"""import time, pathlib
from agentrl.orchestration.whereabouts import keep_status
with keep_status(pathlib.Path({str(run / "status.json")!r}), lambda: 3, lambda: ()):
    time.sleep(60)"""
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_for(run / "status.json")
        process.send_signal(sent)
        if sent is signal.SIGKILL:
            process.wait(10)
            (run / "metrics.jsonl").write_text('{"step": 3}\n{"step": 4}\n{"st')
        else:  # as if a minute had passed
            time.sleep(0.1)
            status = json.loads((run / "status.json").read_text())
            (run / "status.json").write_text(json.dumps({**status, "time": time.time() - 60}))
        assert told in status_of(run.parent, capsys)
    finally:
        process.kill()
        process.wait(10)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_run_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "status", "mine", "--runs-dir", str(tmp_path)]) == 2
    assert "mine: no such run" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{bad", "[]", '{"x":1}', "\udcff"])
def test_a_damaged_status_is_one_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (run / "status.json").write_bytes(text.encode(errors="surrogateescape"))
    assert main(["run", "status", "mine", "--runs-dir", str(run.parent)]) == 2
    told = capsys.readouterr().err
    assert f"{run / 'status.json'}: got " in told
    assert "expected what a run writes every second; delete it, and ask again" in told


def test_a_status_that_is_no_file_is_one_sentence(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "status.json").mkdir()
    assert main(["run", "status", "mine", "--runs-dir", str(run.parent)]) == 2
    told = f"{run / 'status.json'}: could not be read (Is a directory)\n"
    assert capsys.readouterr().err.endswith(told)


def test_an_event_without_a_name_is_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "events.jsonl").write_text('{"time": 1.0}\n')
    told = status_of(run.parent, capsys)
    assert told == "mine does not run; 0 steps are done, the last event is nothing\n"
