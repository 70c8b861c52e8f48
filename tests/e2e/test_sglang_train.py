"""Training with a real SGLang server from the command line, and what is left of it."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(400)]

SMALL = [
    "--rollout.tasks-per-step", "4", "--group-size", "4", "--warm-start.updates", "30",
]  # fmt: skip

WITH_KEYS = """
import os, secrets, sys
drawn, keys = secrets.token_hex, iter(os.environ.pop("KEYS").split())
secrets.token_hex = lambda num=None: next(keys) if num == 32 else drawn(num)
from agentrl.cli import main
sys.exit(main())
"""
"""The command with keys that the test knows: no other process can get at those of a run."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agentrl", *arguments]


def servers(folder: Path) -> list[int]:
    """Processes of servers that were started from this test's folder."""
    found: list[int] = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if process.info["cwd"] == str(folder) and "sglang" in line:
            found.append(process.pid)
    return found


def ready(folder: Path) -> Mapping[str, str]:
    """The arguments that the server of a run was started with, once it is ready."""
    end = time.monotonic() + 300
    found: list[str] = []
    while not any("ready to" in log.read_text() for log in folder.glob("runs/*/engine/*.log")):
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.2)
        for process in psutil.process_iter(["cwd", "cmdline"]):  # later it has a title of its own
            line: list[str] = process.info["cmdline"] or []
            if not found and process.info["cwd"] == str(folder) and "--config" in line:
                found = line
    return dict(pairwise(found))


def check_refused(url: str, keys: Sequence[str]) -> None:
    """Who brings no key, or the wrong one of two, is sent away."""
    for path, right in (("/generate", 0), ("/pause_generation", 1), ("/abort_request", 1)):
        for given in ("", keys[1 - right]):
            head = {"Authorization": f"Bearer {given}"} if given else {}
            assert httpx.post(f"{url}{path}", json={}, headers=head).status_code == 401


def test_three_steps_are_verified_by_a_server_that_nobody_else_can_use(
    sglang_folder: Path, tmp_path: Path
) -> None:
    train = ["train", "--env", "calculator", "--engine", "sglang", "--steps", "3", *SMALL]
    keys = [secrets.token_hex(32), secrets.token_hex(32)]
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_KEYS, *train],
        cwd=tmp_path,
        env=os.environ | {"KEYS": " ".join(keys)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    arguments = ready(tmp_path)
    assert not Path(arguments["--config"]).exists()
    check_refused(f"http://127.0.0.1:{arguments['--port']}", keys)
    listed = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, check=True).stdout
    said = process.communicate(timeout=380)[0]
    assert process.returncode == 0, said
    run = tmp_path / "runs" / "last"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for text in (said.encode(), listed, *written):
        assert not any(key.encode() in text for key in keys)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(step["verified"] == 1.0 for step in steps)
    assert max(step["gap_mean"] for step in steps) < 1e-5
    assert sum(step["cached_tokens"] for step in steps) > 0
    (log,) = (run / "engine").glob("sglang-*.log")
    assert log.read_text().count("'***'") == 2  # it prints its options
    assert servers(tmp_path) == []


@pytest.mark.nightly
def test_adapters_alone_reach_the_server(sglang_folder: Path, tmp_path: Path) -> None:
    flags = ["--engine", "sglang", "--trainer.lora.rank", "4", "--trainer.lora.publish", "adapter"]
    few = ["--rollout.tasks-per-step", "8", "--group-size", "8", "--lr", "5e-3", "--steps", "3"]
    subprocess.run(
        command("train", "--env", "calculator", *few, *flags),
        cwd=tmp_path,
        check=True,
        timeout=380,
    )
    lines = (tmp_path / "runs" / "last" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert max(step["gap_mean"] for step in steps) < 1e-5
    assert steps[-1]["updates"] > 1  # so the server had new adapters to sample with


@pytest.mark.nightly
@pytest.mark.parametrize(
    "more",
    [
        ["--lr", "1e-3"],
        ["--lr", "5e-3", "--trainer.lora.rank", "4", "--engine.share-device"],
    ],
)
def test_slices_of_two_ranks_reach_the_server(
    sglang_folder: Path, tmp_path: Path, more: Sequence[str]
) -> None:
    flags = ["--engine", "sglang", "--engine.sglang.transport", "shared", "--trainer.ranks", "2"]
    few = ["--rollout.tasks-per-step", "8", "--group-size", "8", "--steps", "3"]
    subprocess.run(
        command("train", "--env", "calculator", *few, *flags, *more),
        cwd=tmp_path,
        check=True,
        timeout=380,
    )
    lines = (tmp_path / "runs" / "last" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert all(step["verified"] == 1.0 for step in steps)
    assert max(step["gap_mean"] for step in steps) < 1e-5
    assert steps[-1]["updates"] > 1  # so the server had new weights to sample with
    assert servers(tmp_path) == []


@pytest.mark.nightly
def test_an_exported_model_is_served(sglang_folder: Path, tmp_path: Path) -> None:
    train = ["--env", "calculator", "--trainer.lora.rank", "4", "--steps", "1", *SMALL]
    subprocess.run(command("train", *train), cwd=tmp_path, check=True, timeout=200)
    subprocess.run(command("export", "last", "model"), cwd=tmp_path, check=True, timeout=100)
    flags = ["--env", "calculator", "--engine", "sglang", "--model", "model", "--eval.tasks", "4"]
    done = subprocess.run(
        command("eval", *flags, "--json"),
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=380,
    )
    assert json.loads(done.stdout)["invalid"] == 0


def test_a_killed_run_takes_its_server_along(sglang_folder: Path, tmp_path: Path) -> None:
    arguments = command("engine", "serve", "sglang", "--model", "tiny", "--logs", str(tmp_path))
    process = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, env=os.environ)
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    assert b"is served at" in lines[1]
    assert len(servers(tmp_path)) > 3  # the command, its guard, the server and its children
    process.send_signal(signal.SIGKILL)
    process.communicate()
    end = time.monotonic() + 40
    while servers(tmp_path):
        assert time.monotonic() < end, "the server outlived its owner"
        time.sleep(0.2)


def test_an_unusable_model_is_said_in_one_sentence(sglang_folder: Path, tmp_path: Path) -> None:
    flags = ["--logs", str(tmp_path), "--engine.sglang.extra-args=--no-such-flag 3"]
    done = subprocess.run(
        command("engine", "serve", "sglang", "--model", "tiny", *flags),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "the SGLang server did not start: " in done.stderr
    assert "unrecognized arguments: --no-such-flag 3" in done.stderr
    assert len(done.stderr.splitlines()) == 1
