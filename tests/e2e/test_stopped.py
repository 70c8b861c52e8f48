"""Ctrl-C and SIGTERM at chosen moments of a run: what is kept is exact, and goes on."""

import json
import os
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.cli import main
from agentrl.errors import RunError
from agentrl.orchestration import stopping
from agentrl.orchestration.warm_start import Demonstrations
from agentrl.run_dir import MetricsWriter, read_lines
from agentrl.terminated import Terminated
from agentrl.trainer import trainer
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import Batch

ENV = """
import asyncio, os, signal
from agentrl.envs import ToolEnv
from agentrl.types import Score, Task

class Letters(ToolEnv):
    max_turns = 1
    tasks = [Task(prompt=f"Task {i}", answer=i) for i in range(12)]

    async def setup(self):
        if blow := os.environ.pop("BLOW", ""):
            os.kill(os.getpid(), int(blow))
            await asyncio.sleep(float(os.environ["THEN"]))

    def score(self, answer):
        return Score(value=min(1.0, sum(c.isalpha() for c in answer) / 40))
"""
FLAGS = [
    *("--deterministic", "--threads", "1", "--checkpoint.every", "9", "--steps", "4"),
    *("--rollout.tasks-per-step", "2", "--group-size", "2", "--rollout.max-new-tokens", "4"),
]

SMALL: Any = {
    "threads": 1,
    "rollout": {"tasks_per_step": 2, "group_size": 2, "max_new_tokens": 4},
}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("stopped") / "env.py"
    file.write_text(ENV)
    return f"{file}:Letters"


@pytest.fixture(scope="module")
def straight(env: str) -> bytes:
    root = Path(env).parent / "straight"
    assert main(["train", "--env", env, *FLAGS, "--runs-dir", str(root), "--name", "a"]) == 0
    return weights(root)


@pytest.fixture(autouse=True)
def _handlers() -> Generator[None]:
    """As a process in the foreground has them."""
    wanted: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield
    for number, handler in wanted.items():
        assert signal.getsignal(number) is handler  # a run gives back what it took
        signal.signal(number, before[number])


def weights(root: Path) -> bytes:
    return (root / "a" / "model" / "model.safetensors").read_bytes()


def steps(root: Path) -> list[int]:
    lines = (root / "a" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def kept(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "a" / "checkpoints").iterdir())


def after_step(number: int, then: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once the metrics of a step are written."""
    write = MetricsWriter.write

    def wrapped(self: MetricsWriter, step: int, metrics: dict[str, float]) -> None:
        write(self, step, metrics)
        if step == number:
            then()

    monkeypatch.setattr(MetricsWriter, "write", wrapped)


@pytest.mark.parametrize(
    ("blow", "then", "stays"),
    [
        (signal.SIGTERM, "0", 2),  # the step ends
        (signal.SIGINT, "0", 2),
        (signal.SIGTERM, "60", 1),  # the step is given up
    ],
)
def test_what_is_kept_goes_on_bit_for_bit(
    env: str,
    straight: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    blow: signal.Signals,
    then: str,
    stays: int,
) -> None:
    monkeypatch.setenv("THEN", then)
    monkeypatch.setattr(stopping, "GRACE_S", 6.0)
    monkeypatch.setattr(stopping, "CANCEL_S", 0.5)
    with monkeypatch.context() as once:
        after_step(1, lambda: os.environ.update(BLOW=str(int(blow))), once)
        command = ["train", "--env", env, *FLAGS, "--runs-dir", str(tmp_path), "--name", "a"]
        assert main(command) == 128 + blow
    said = capfd.readouterr().err.splitlines()
    assert "stopping after this step" in said[1]
    assert said[-1].endswith(
        f"; step {stays} is kept; go on with: agentrl train --resume {tmp_path / 'a'}"
    )
    assert kept(tmp_path) == [f"step-{stays:06}"]
    assert main(["train", "--resume", str(tmp_path / "a")]) == 0
    assert steps(tmp_path) == [1, 2, 3, 4]
    assert weights(tmp_path) == straight


@pytest.mark.parametrize(
    ("when", "stays"), [("in the gradient", ["step-000001"]), ("in the optimizer", [])]
)
def test_an_update_that_takes_too_long_is_broken_off(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, stays: list[str]
) -> None:
    name = "_accumulate_gradients" if when == "in the gradient" else "_take_optimizer_step"
    original: Callable[..., object] = getattr(LocalTrainer, name)

    def slow(self: LocalTrainer, *arguments: object) -> object:
        if self.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        return original(self, *arguments)

    monkeypatch.setattr(LocalTrainer, name, slow)
    monkeypatch.setattr(stopping, "GRACE_S", 0.5)
    monkeypatch.setattr(stopping, "CANCEL_S", 0.4)
    monkeypatch.setattr(trainer, "_END_S", 0.1)
    with pytest.raises(Terminated, match="step 1 is kept" if stays else "no step is kept"):
        agentrl.train(env, name="a", runs_dir=str(tmp_path), **SMALL)
    assert [path.name for path in (tmp_path / "a").glob("checkpoints/*")] == stays


def test_a_second_signal_stops_at_once(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEN", "60")

    def again(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def twice() -> None:
        os.environ["BLOW"] = str(int(signal.SIGTERM))
        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, 1.5)

    after_step(1, twice, monkeypatch)
    command = ["train", "--env", env, *FLAGS, "--runs-dir", str(tmp_path), "--name", "a"]
    began = time.monotonic()
    assert main(command) == 143
    assert time.monotonic() - began < 25
    assert list((tmp_path / "a").glob("checkpoints/*")) == []


@pytest.mark.parametrize(
    ("blow", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGHUP, Terminated)]
)
def test_between_steps_it_is_raised_where_it_came(
    env: str, tmp_path: Path, blow: signal.Signals, error: type[BaseException]
) -> None:
    def play() -> None:
        with agentrl.Run(env, name="a", runs_dir=str(tmp_path), steps=3, **SMALL) as run:
            for _ in run:
                signal.raise_signal(blow)
                raise AssertionError("it was not heard")

    with pytest.raises(error, match="step 1 is kept"):
        play()
    assert kept(tmp_path) == ["step-000001"]


def test_a_handler_of_the_users_stays(env: str, tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with agentrl.Run(env, name="a", runs_dir=str(tmp_path), steps=2, **SMALL) as run:
            for _ in run:
                signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", ["train", "sft"])
def test_a_run_that_dies_in_its_demonstrations_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    batch = Demonstrations.batch

    async def fail(self: Demonstrations, update: int) -> Batch:
        if update:
            raise RunError("no demonstration today")
        return await batch(self, update)  # the name of the warm start in the cache

    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))  # no warm start of before
    monkeypatch.setattr(Demonstrations, "batch", fail)
    flags = ["--env", "calculator", "--threads", "1", "--runs-dir", str(tmp_path), "--name", "a"]
    assert main([command, *flags]) == 1
    first, *_, last = read_lines(tmp_path / "a" / "events.jsonl")
    assert first["event"] == "start"
    assert (last["event"], last["reason"]) == ("stopped", "no demonstration today")
    assert last["phase"] == ("warm start" if command == "train" else "demonstrations")
    assert (tmp_path / "a" / "config.toml").exists() == (command == "sft")
