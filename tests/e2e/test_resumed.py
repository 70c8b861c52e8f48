"""A resumed run: what it may change, what is written down of it, and what it is refused for."""

import json
import shutil
from pathlib import Path

import pytest

import agentrl
from agentrl.cli import main
from agentrl.errors import ConfigError
from agentrl.orchestration.load import load_run_config

ENV = f"{Path(__file__).parent / 'digits_env.py'}:Digits"
FLAGS = [
    *("--env", ENV, "--threads", "1", "--checkpoint.every", "2", "--lr", "1e-4"),
    *("--trainer.schedule", "constant", "--trainer.warmup-steps", "0"),
    *("--rollout.tasks-per-step", "2", "--group-size", "2", "--rollout.max-new-tokens", "4"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one of two steps in it."""
    root = tmp_path_factory.mktemp("resumed") / "runs"
    assert main(["train", *FLAGS, "--runs-dir", str(root), "--name", "run", "--steps", "2"]) == 0
    return root


@pytest.fixture
def runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "runs", symlinks=True))


def events(runs: Path, kind: str) -> list[dict[str, object]]:
    lines = (runs / "run" / "events.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == kind]


def rates(runs: Path) -> list[float]:
    lines = (runs / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["lr"] for line in lines]


def card(runs: Path, step: int) -> tuple[str, str]:
    """The learning rate and the changes that the model card of a checkpoint names."""
    out = runs / f"model-{step}"
    assert main(["export", str(runs / f"run/checkpoints/step-{step:06}"), str(out)]) == 0
    lines = (out / "README.md").read_text().splitlines()
    rows = {row[1].strip(): row[2].strip() for line in lines if len(row := line.split("|")) == 4}
    return rows["algorithm"].split()[-1], rows["changed when it was resumed"]


def test_flags_of_a_resume_are_kept_and_named(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--resume", "run", "--steps", "3", "--lr", "5e-5"]) == 0
    said = "resumed run after step 2; with steps: 2 -> 3 (--steps), trainer.lr: 0.0001 -> 5e-05"
    shown = capsys.readouterr().out
    assert said in shown
    assert "random weights" not in shown
    assert card(runs, 2) == ("0.0001", "nothing")
    assert main(["train", "--resume", "run", "--steps", "4"]) == 0
    assert "trainer.lr: 5e-05 (--lr after step 2)" in capsys.readouterr().out
    assert agentrl.train(ENV, name="run", resume=True, steps=5).steps == 5
    assert rates(runs) == [1e-4, 1e-4, 5e-5, 5e-5, 5e-5]
    changed, kept, by_keyword = events(runs, "resume")
    assert changed["changes"] == ["steps: 2 -> 3 (--steps)", "trainer.lr: 0.0001 -> 5e-05 (--lr)"]
    assert kept["kept"] == ["trainer.lr: 5e-05 (--lr after step 2)"]
    assert by_keyword["changes"] == ["steps: 4 -> 5 (keyword)"]
    config = (runs / "run" / "config.toml").read_text()
    assert "lr = 5e-05  # --lr after step 2\n" in config
    assert "threads = 1  # --threads\n" in config
    assert load_run_config(file=runs / "run" / "config.toml").config.steps == 5
    rate, changes = card(runs, 5)
    assert rate == "5e-05"
    assert "after step 2: trainer.lr: 0.0001 -> 5e-05 (--lr); after step 3: steps: 3" in changes


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seed", "1"], "seed: got 1, but the run was started with 0"),
        (["--steps", "1", "--lr", "5e-5"], "steps: got 1, but the run has done 2 already"),
        (["--trainer.lora.rank", "4"], "trainer.lora.rank: got 4, but the run was started with 0"),
        (["--trainer.algorithm", "ppo"], 'trainer.algorithm: got "ppo", but the run was started'),
        (["--trainer.optimizer", "adamw8bit"], 'trainer.optimizer: got "adamw8bit", but the run'),
    ],
)
def test_a_refused_resume_leaves_nothing_behind(
    runs: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    names = ("config.toml", "layers.jsonl", "events.jsonl")
    before = {name: (runs / "run" / name).read_text() for name in names}
    for dry in ([], ["--dry-run"]):
        assert main(["train", "--resume", "run", *flags, *dry]) == 2
        assert said in capsys.readouterr().err
    assert before == {name: (runs / "run" / name).read_text() for name in before}
    # The lock is free again, in this process too.
    assert main(["train", "--resume", "run", "--steps", "3"]) == 0


def test_python_resumes_what_the_run_was_started_with(runs: Path) -> None:
    with pytest.raises(ConfigError, match="env: got calculator, but the run was started with"):
        agentrl.train("calculator", name="run", resume=True)
    with pytest.raises(ConfigError, match="resuming needs the run's name"):
        agentrl.train(ENV, resume=True)
    with agentrl.Run(ENV, name="run", resume=True, steps=3, lr=2e-4) as run:
        assert run.config.rollout.group_size == 2
        assert [step.metrics["lr"] for step in run] == [2e-4]
    assert rates(runs) == [1e-4, 1e-4, 2e-4]


LISTED = """
from agentrl.envs import ToolEnv

class Listed(ToolEnv):
    max_turns = 1
    tasks = {"train": "train.jsonl", "heldout": "heldout.jsonl"}

    def score(self, answer):
        return min(1.0, sum(c.isalpha() for c in answer) / 40)
"""


def write_tasks(file: Path, *prompts: str) -> None:
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))


def fail(*_: object) -> None:
    raise ZeroDivisionError


def test_tasks_that_changed_are_refused_or_accepted_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    env = tmp_path / "listed.py"
    env.write_text(LISTED)
    write_tasks(tmp_path / "train.jsonl", "a", "b")
    write_tasks(tmp_path / "heldout.jsonl", "c")
    flags = ["--env", f"{env}:Listed", *FLAGS[2:], "--name", "run", "--steps", "1"]
    assert main(["train", *flags]) == 0
    capsys.readouterr()

    # Written anew with other spaces, under another name: the same tasks in another source.
    (tmp_path / "train.jsonl").unlink()
    (tmp_path / "moved.jsonl").write_text('{"prompt":"a"}\n\n{ "prompt": "b" }\n')
    env.write_text(LISTED.replace("train.jsonl", "moved.jsonl"))
    assert main(["train", "--resume", "run", "--steps", "2"]) == 0
    name, run = "env Listed", str(tmp_path / "runs" / "run")
    warning = f"warning: the file of the class Listed of {name} is another than before step 1\n"
    assert warning in capsys.readouterr().out

    write_tasks(tmp_path / "moved.jsonl", "a", "B")
    write_tasks(tmp_path / "heldout.jsonl", "d")  # is not used
    monkeypatch.chdir("/")  # from wherever
    for more in ([], ["--dry-run"]):
        assert main(["train", "--resume", run, "--steps", "3", *more]) == 2
        assert capsys.readouterr().err == (
            f"agentrl: error: {name}: split train: not what the run was trained on until step 2; "
            "put it back, or go on with what is there now by --accept-changes (in Python "
            "accept_changes=True)\n"
        )
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as killed:  # before there is a checkpoint with the new tasks
        killed.setattr("agentrl.orchestration.controller.Controller.step", fail)
        with pytest.raises(ZeroDivisionError):
            main(["train", "--resume", "run", "--steps", "3", "--accept-changes"])
    assert main(["train", "--resume", "run"]) == 0
    accepted = f"{name}: split train: accepted as it is now (--accept-changes)"
    assert accepted in str(events(tmp_path / "runs", "resume")[1]["changes"])
    assert accepted in card(tmp_path / "runs", 3)[1]
    capsys.readouterr()
    assert main(["train", "--resume", "run", "--steps", "4"]) == 0
    assert "accepted" not in capsys.readouterr().out
    assert main(["train", *flags[:-3], "other", "--accept-changes"]) == 2
