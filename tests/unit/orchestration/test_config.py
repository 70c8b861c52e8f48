from pathlib import Path

import pytest

import agentrl
from agentrl.config.dump import dump_config
from agentrl.errors import ConfigError
from agentrl.orchestration.config import SHORT_NAMES
from agentrl.orchestration.load import load_run_config


def test_the_short_names_are_frozen() -> None:
    assert sorted(SHORT_NAMES) == [
        "algorithm",
        "context",
        "correct",
        "deterministic",
        "engine",
        "engine-url",
        "env",
        "estimator",
        "eval-every",
        "executor",
        "group-size",
        "loss",
        "lr",
        "max-turns",
        "model",
        "name",
        "normalise",
        "observer",
        "ray-address",
        "sampler",
        "sandbox",
        "seed",
        "steps",
        "tasks-per-step",
        "temperature",
        "threads",
        "verifier",
    ]


def test_the_public_names_are_there() -> None:
    for name in agentrl.__all__:
        assert getattr(agentrl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        getattr(agentrl, "trian")  # noqa: B009


def test_a_preset_lies_under_file_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[rollout]\nmax_new_tokens = 33\n\n[[env]]\nname = "calculator"\n')
    loaded = load_run_config(file=file, flags=["--lr", "0.5"])
    assert loaded.config.rollout.max_new_tokens == 33
    assert loaded.config.trainer.lr == 0.5
    assert loaded.config.rollout.max_context_tokens == 512
    assert loaded.origins["rollout.max_context_tokens"] == "tiny preset"
    assert loaded.origins["trainer.lr"] == "--lr"


def test_the_effective_configuration_loads_back(tmp_path: Path) -> None:
    loaded = load_run_config(flags=["--env", "calculator", "--env.digits", "3", "--seed", "7"])
    file = tmp_path / "config.toml"
    file.write_text(dump_config(loaded))
    assert load_run_config(file=file).config == loaded.config
    assert "digits = 3  # --env.digits" in file.read_text()


def test_several_environments_each_keep_their_parameters(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[[env]]\nname = "calculator"\nweight = 3\ndigits = 1\n\n[[env]]\nname = "number_guess"\n'
    )
    first, second = load_run_config(file=file).config.env
    assert (first.name, first.weight, first.params["digits"]) == ("calculator", 3.0, 1)
    assert second.name == "number_guess"


def test_a_temperature_of_zero_is_refused_for_training() -> None:
    with pytest.raises(ConfigError, match="temperature"):
        load_run_config(flags=["--env", "calculator", "--temperature", "0"])
