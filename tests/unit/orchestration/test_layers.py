import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.orchestration.env_mix import NO_OBJECTS
from agentrl.orchestration.layers import (
    Layers,
    config_at,
    first_layer,
    flat_values,
    load_resumed,
    write_layer,
)
from agentrl.orchestration.load import load_run_config
from agentrl.orchestration.resumable import check_resumable
from agentrl.run_dir import RunDirectory

START = ["--env", "calculator", "--env.digits", "3", "--lr", "0.5", "--steps", "7"]
VALUES: dict[str, st.SearchStrategy[object]] = {
    "steps": st.integers(1, 9),
    "lr": st.sampled_from([0.5, 0.25, 1e-4]),
    "trainer.clip.high": st.sampled_from([0.28, 0.3]),
    "tool-format": st.sampled_from(["hermes", "none", 'a "quoted" # name']),
    "checkpoint.background": st.sampled_from(["true", "false"]),
    "rollout.max-episode-tokens": st.sampled_from(["none", "900"]),
}
KEYS = {"lr": "trainer.lr"}
OVERRIDES = st.fixed_dictionaries({}, optional=VALUES)


def start(root: Path) -> RunDirectory:
    directory = RunDirectory.create(root, "run")
    loaded = load_run_config(flags=START)
    write_layer(directory, loaded, first_layer(loaded))
    directory.close()
    return directory


def fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def resume(directory: RunDirectory, step: int, *flags: str) -> list[str]:
    loaded = load_resumed(directory, flags=flags)
    layer = Layers.started(directory, NO_OBJECTS).next(loaded, step)
    write_layer(directory, loaded, layer)
    return layer.changes()


@settings(max_examples=5, deadline=None)
@given(st.lists(st.tuples(OVERRIDES, st.integers(0, 3), st.booleans()), max_size=5))
def test_the_configuration_is_the_sum_of_all_resumes(
    resumes: list[tuple[dict[str, object], int, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory, step = start(Path(folder)), 0
        wanted = flat_values(load_run_config(flags=START))
        origins = dict(load_run_config(file=directory.config).origins)
        origins = {key: Layers.read(directory).origins[key] for key in origins}
        for overrides, done, begins in resumes:
            step += done
            flags = [f"--{key}={value}" for key, value in overrides.items()]
            loaded = load_resumed(directory, flags=flags)
            if not begins:  # refused, or killed before it began: nothing of it is kept
                continue
            write_layer(directory, loaded, Layers.read(directory).next(loaded, step))
            alone = flat_values(load_run_config(flags=[*START[:2], *flags]))
            for name in overrides:
                key = KEYS.get(name, name.replace("-", "_"))
                if wanted[key] != alone[key]:
                    wanted[key], origins[key] = alone[key], f"--{name} after step {step}"
        layers, now = Layers.read(directory), load_run_config(file=directory.config)
        assert layers.values == wanted
        assert flat_values(now) == wanted
        assert layers.origins == origins
        assert config_at(now, layers, step + 1) == now.config
        text = directory.config.read_text()
        assert f"lr = {wanted['trainer.lr']!r}  # {origins['trainer.lr']}\n" in text
        assert "digits = 3  # --env.digits\n" in text
        assert "weight_decay = 0.0  # default\n" in text


def test_a_change_is_named_with_both_values_and_kept(tmp_path: Path) -> None:
    directory = start(tmp_path)
    assert resume(directory, 4, "--lr", "0.25") == ["trainer.lr: 0.5 -> 0.25 (--lr)"]
    assert Layers.read(directory).kept() == []
    assert resume(directory, 6) == []
    assert Layers.read(directory).kept() == ["trainer.lr: 0.25 (--lr after step 4)"]
    assert resume(directory, 6, "--lr", "0.5") == ["trainer.lr: 0.25 -> 0.5 (--lr)"]
    assert resume(directory, 8) == []
    assert Layers.read(directory).kept() == []


def test_each_step_knows_what_it_was_trained_under(tmp_path: Path) -> None:
    directory = start(tmp_path)
    resume(directory, 4, "--lr", "0.25")
    resume(directory, 8, "--lr", "0.125")
    resume(directory, 6, "--steps", "9")  # the newest checkpoint was lost: 7 and 8 were redone
    now, layers = load_run_config(file=directory.config), Layers.read(directory)
    rates = [config_at(now, layers, step).trainer.lr for step in range(1, 10)]
    assert rates == [0.5] * 4 + [0.25] * 2 + [0.125] * 3
    assert config_at(now, layers, 6).steps == 7


def test_a_hand_on_the_file_is_a_change_like_any_other(tmp_path: Path) -> None:
    directory = start(tmp_path)
    directory.config.write_text(directory.config.read_text().replace("lr = 0.5 ", "lr = 0.75 "))
    assert resume(directory, 2) == ["trainer.lr: 0.5 -> 0.75 (config.toml)"]
    assert "lr = 0.75  # config.toml after step 2\n" in directory.config.read_text()


def test_what_was_written_before_a_kill_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = start(tmp_path)
    with monkeypatch.context() as killed:
        killed.setattr("agentrl.orchestration.layers.LineWriter", fail)
        with pytest.raises(ZeroDivisionError):
            resume(directory, 2, "--lr", "0.25")
    assert load_run_config(file=directory.config).config.trainer.lr == 0.25
    assert resume(directory, 2) == ["trainer.lr: 0.5 -> 0.25 (config.toml)"]
    assert Layers.read(directory).values["trainer.lr"] == 0.25


def test_a_run_that_has_no_layers_gets_them(tmp_path: Path) -> None:
    directory = start(tmp_path)
    directory.layers.unlink()
    assert resume(directory, 1, "--steps", "8") == ["steps: 7 -> 8 (--steps)"]
    assert len(Layers.read(directory).layers) == 2


def test_a_moved_run_has_changed_nothing(tmp_path: Path) -> None:
    directory = start(tmp_path / "here")
    moved = RunDirectory.open(tmp_path, str(directory.path.rename(tmp_path / "there")))
    assert resume(moved, 1) == []
    assert 'name = "none"  # default\n' in moved.config.read_text()


@pytest.mark.parametrize(
    ("edit", "flags", "said"),
    [
        (("", ""), ["--seed", "4"], "seed: got 4, but the run was started with 0;"),
        (("seed = 0", "seed = 4"), [], "seed: got 4, but the run was started with 0;"),
        (("", ""), ["--env.digits", "2"], "env.0.digits: got 2, but the run was started with 3;"),
        (("digits = 3", "digits = 2"), [], "env.0.digits: got 2, but the run was started with 3;"),
        (("digits = 3  #", "#"), [], "env.0.digits: got 2, but the run was started with 3;"),
        (("", ""), ["--env", "long_haul"], 'env.0.name: got "long_haul", but the run was started'),
        (("", ""), ["--steps", "9", "--lr", "1e-4"], ""),
    ],
)
def test_tasks_stay_whether_flags_or_a_hand_would_change_them(
    tmp_path: Path, edit: tuple[str, str], flags: list[str], said: str
) -> None:
    directory = start(tmp_path)
    directory.config.write_text(directory.config.read_text().replace(*edit))
    loaded = load_resumed(directory, flags=flags)
    if not said:
        check_resumable(directory, loaded)
        return
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_resumable(directory, loaded)


def test_without_a_configuration_nothing_is_resumed(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "empty")
    with pytest.raises(ConfigError, match=r"has no config\.toml.* --name empty"):
        load_resumed(directory)
