import json
from pathlib import Path

import pytest

from agentrl.cli.command import Arguments, JsonOption
from agentrl.cli.dispatch import main
from agentrl.cli.run_config import load_resumed, show_result
from agentrl.config import dump_config
from agentrl.config.flags import Flag, split_flags
from agentrl.errors import ConfigError
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.run import RunResult
from agentrl.run_dir import RunDirectory


def flags_of(text: str) -> tuple[Flag, ...]:
    return tuple(split_flags(text.split(), lambda key: False)[1])


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with one run in it, started with a parameter of its environment."""
    flags = ["--env", "calculator", "--env.digits", "3", "--steps", "7", "--lr", "0.5"]
    with RunDirectory.create(tmp_path / "runs", "first") as run:
        run.write_config(dump_config(load_run_config(flags=flags)))
    return tmp_path / "runs"


@pytest.mark.parametrize("run", ["first", "last", "PATH"])
def test_a_resumed_run_has_its_own_configuration_and_new_flags(runs: Path, run: str) -> None:
    flags = flags_of(f"--steps=9 --env.operators=+ --runs-dir={runs}")
    name = str(runs / "first") if run == "PATH" else run
    config = load_resumed(Arguments(positional=(), flags=flags), name).config
    assert config.steps == 9
    assert config.trainer.lr == 0.5
    assert config.env[0].params == {"digits": 3, "operators": "+"}
    assert (config.runs_dir, config.name) == (str(runs), "first")


def test_resuming_takes_no_file(runs: Path) -> None:
    with pytest.raises(ConfigError, match=r"--resume: got run\.toml too, expected no file"):
        load_resumed(Arguments(positional=("run.toml",), flags=()), "last")


def test_a_run_that_never_began_cannot_be_resumed(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "empty").close()
    with pytest.raises(ConfigError, match=r"has no config\.toml"):
        load_resumed(Arguments(positional=(), flags=flags_of(f"--runs-dir={tmp_path}")), "empty")


def test_a_result_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    result = RunResult(
        path=Path("runs/a"), model=Path("runs/a/model"), steps=2, metrics={"reward": 0.5}, eval=None
    )
    show_result(result, JsonOption())
    assert capsys.readouterr().out == "run    runs/a\nmodel  runs/a/model\n"
    show_result(result, JsonOption(json=True))
    assert json.loads(capsys.readouterr().out) == {
        "path": "runs/a",
        "model": "runs/a/model",
        "steps": 2,
        "metrics": {"reward": 0.5},
        "eval": None,
    }


def test_a_dry_run_shows_the_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--env", "calculator", "--group-size", "4", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "group_size = 4  # --group-size\n" in out
    Path("again.toml").write_text(out)
    assert main(["train", "again.toml", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["rollout"]["group_size"] == 4
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere.toml"], "nowhere.toml: no such file, expected a TOML file"),
        (["--env", "calculator", "--trainer.clip.hihg", "1"], "did you mean --trainer.clip.high?"),
        (["--env", "calculator", "--max-turns", "-1"], "--max-turns: got -1, expected"),
        (["--resume", "last"], "has no last run yet"),
        (["--dry-run"], "no environment is given"),
    ],
)
def test_bad_input_ends_with_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *argv]) == 2
    assert said in capsys.readouterr().err
