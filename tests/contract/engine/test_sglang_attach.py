"""The command line against a server that runs already."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli.dispatch import main
from agentrl.engine.servers.process import Server

pytestmark = pytest.mark.timeout(300)


def agentrl(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "agentrl", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("transport", ["tensor", "disk"])
def test_a_run_trains_against_our_own_server(
    local_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--rollout.tasks-per-step", "2", "--group-size", "2", "--warm-start.updates", "1"]
    how = ["--engine-url", local_url, "--engine.sglang.transport", transport, "--steps", "1"]
    assert main(["train", "--env", "calculator", *how, *small]) == 0
    (step,) = (tmp_path / "runs/last/metrics.jsonl").read_text().splitlines()
    assert json.loads(step)["verified"] == 1.0
    assert json.loads(step)["gap_mean"] < 1e-5
    assert main(["engine", "check", local_url, "--model", "runs/last/model"]) == 0
    assert main(["engine", "check", local_url, "--model", "tiny"]) == 1


@pytest.mark.sglang
def test_a_run_uses_the_server_and_leaves_it_running(server: Server, tmp_path: Path) -> None:
    small = ["--rollout.tasks-per-step", "4", "--group-size", "4", "--warm-start.updates", "60"]
    train = ["train", "--env", "calculator", "--engine-url", server.url, "--steps", "2", *small]
    done = agentrl(tmp_path, *train)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs/last/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert max(step["gap_mean"] for step in steps) < 1e-5
    assert server.alive
    trained = str(tmp_path / "runs" / "last" / "model")
    checked = agentrl(tmp_path, "engine", "check", server.url, "--model", trained, "--json")
    report = json.loads(checked.stdout)
    assert checked.returncode == 0, report
    assert report["ok"]
    assert report["rows"][3]["detail"].endswith(f": {steps[-1]['updates']:.0f}")
    other = agentrl(tmp_path, "engine", "check", server.url, "--model", "tiny")
    assert other.returncode == 1
    assert "FAIL  logprobs" in other.stdout
    resumed = agentrl(tmp_path, "train", "--resume", "last", "--steps", "3")
    assert resumed.returncode == 0, resumed.stderr
    evaluated = agentrl(
        tmp_path, "eval", "--env", "calculator", "--model", trained, "--engine-url", server.url,
        "--eval.tasks", "8", "--json",
    )  # fmt: skip
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["episodes"] == 8


@pytest.mark.sglang
def test_what_is_no_server_is_said_in_one_sentence(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    for command in (
        ["train", "--env", "calculator", "--engine-url", url],
        ["engine", "check", url],
    ):
        done = agentrl(
            tmp_path, *command, *(["--warm-start.updates=1"] if "train" in command else [])
        )
        assert done.returncode == 2
        assert f"the SGLang server at {url} did not do /server_info" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.sglang
def test_a_deterministic_run_is_refused(tmp_path: Path) -> None:
    flags = ["--engine", "sglang", "--deterministic", "--dry-run"]
    done = agentrl(tmp_path, "train", "--env", "calculator", *flags)
    assert done.returncode == 2
    assert "deterministic: got true with engine sglang" in done.stderr
