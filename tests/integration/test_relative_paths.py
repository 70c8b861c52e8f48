"""A relative path is relative to the file that says it, and is stored absolute."""

from pathlib import Path

import pytest

import agentrl
from agentrl.cli.dispatch import main
from agentrl.config.anchor import anchored_reference
from agentrl.config.load import read_toml
from agentrl.envs import resolve_env
from agentrl.orchestration.config import RunConfig
from agentrl.orchestration.load import load_run_config

ENV = """
from agentrl.envs import ToolEnv
class Mine(ToolEnv):
    tasks = {"train": "tasks.jsonl", "heldout": "tasks.jsonl"}
    verifier = "rules.py:even"
"""
RULES = """
def even(task, answer):
    return len(str(answer)) % 2 == 0
def context(view):
    return None
"""
FEW = ["--group-size", "2", "--tasks-per-step", "1", "--rollout.max-new-tokens", "4"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose files name each other; the tests work elsewhere."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "env.py").write_text(ENV)
    (folder / "rules.py").write_text(RULES)
    (folder / "tasks.jsonl").write_text('{"prompt": "Say something."}\n')
    (tmp_path / "elsewhere").mkdir()
    return folder


def test_a_class_names_files_beside_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.parent / "elsewhere")
    env = resolve_env(f"{project}/env.py:Mine")()
    env.reset(seed=0)
    assert env.step("four")[1] == 1.0
    env.close()


def test_every_path_of_a_file_is_relative_to_it_and_of_a_flag_to_the_working_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = project / "run.toml"
    (project / "models" / "mine").mkdir(parents=True)
    toml.write_text(
        'model = "models/mine"\nverifier = "rules.py:even"\nruns_dir = "out"\n'
        '[context]\npolicy = "rules.py:context"\n'
        '[[env]]\nname = "env.py:Mine"\n[[env]]\nname = "code_sandbox"\ntasks = "tasks.jsonl"\n'
        '[env.sandbox]\nbackend = "box.py:Box"\nbase = "base"\n'
        '[env.sandbox.mounts]\ndata = "data"\n'
    )
    monkeypatch.chdir(project.parent)
    config = load_run_config(file=Path("project/run.toml"), flags=["--runs-dir", "kept"]).config
    assert config.model == f"{project}/models/mine"
    assert config.verifier == f"{project}/rules.py:even"
    assert config.context.policy == f"{project}/rules.py:context"
    assert config.runs_dir == f"{project.parent}/kept"
    mine, code = config.env
    assert (mine.name, mine.label) == (f"{project}/env.py:Mine", "env.py:Mine")
    sandbox = {"backend": f"{project}/box.py:Box", "base": f"{project}/base"}
    assert code.params["tasks"] == f"{project}/tasks.jsonl"
    assert code.params["sandbox"].items() >= sandbox.items()  # type: ignore[attr-defined]
    assert code.params["sandbox"]["mounts"] == {"data": f"{project}/data"}  # type: ignore[index]


def test_names_that_are_no_paths_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    keywords = {"env": [{"name": "calculator"}], "verifier": "exact_number", "model": "owner/name"}
    config = load_run_config(keywords=keywords).config
    assert (config.env[0].name, config.verifier) == ("calculator", "exact_number")
    assert (config.model, RunConfig().model) == ("owner/name", "tiny")
    assert load_run_config(flags=["--env", "calculator", "--model", "tiny"]).config.model == "tiny"
    assert anchored_reference("pkg.mod:Name", tmp_path) == "pkg.mod:Name"
    assert anchored_reference("reward_model:rm@cuda:0", tmp_path) == (
        f"reward_model:{tmp_path}/rm@cuda:0"
    )


def test_a_run_is_resumed_from_another_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    flags = ["--env", "env.py:Mine", "--verifier", "rules.py:even", "--name", "one", *FEW]
    assert main(["train", *flags, "--steps", "1"]) == 0
    stored = read_toml(project / "runs" / "one" / "config.toml")
    assert stored["verifier"] == f"{project}/rules.py:even"
    assert stored["runs_dir"] == f"{project}/runs"
    monkeypatch.chdir(project.parent / "elsewhere")
    assert main(["train", "--resume", str(project / "runs" / "one"), "--steps", "2"]) == 0
    again = agentrl.train(
        "../project/env.py:Mine", name="one", runs_dir="../project/runs", resume=True, steps=3
    )
    assert again.steps == 3
    assert not [*Path.cwd().iterdir()]
