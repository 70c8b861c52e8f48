"""What is built in, and what each of it needs."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli.dispatch import main
from agentrl.config import dump_config
from agentrl.orchestration.load import load_run_config
from agentrl.trainer.algorithms.catalogue import entries
from agentrl.trainer.algorithms.corrections import make_correction
from agentrl.trainer.algorithms.estimators import make_estimator
from agentrl.trainer.algorithms.losses import make_loss
from agentrl.trainer.algorithms.normalisations import make_normalisation
from agentrl.trainer.algorithms.presets import ALGORITHMS
from agentrl.trainer.algorithms.recipe import make_recipe
from agentrl.trainer.config import TrainerConfig


def test_the_list_is_what_the_document_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithm", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    parts = [e for e in found if e["kind"] != "algorithm"]
    assert len(parts) >= 24
    assert len(found) == len(list(entries()))
    page = (Path(__file__).parents[3] / "docs/algorithms.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    # Tables of agreement have three columns.
    table = {row[1].strip(" `"): (row[3].strip(), row[4].strip()) for row in rows if row[5:]}
    assert table == {e["name"]: (e["paper"], ", ".join(e["needs"])) for e in parts}


def test_the_list_for_people_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithm", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list(entries())) + 5
    assert "[critic, turn rewards]" in next(line for line in lines if line.startswith("  gae "))


def test_one_is_shown_with_all_that_is_known_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithm", "show", "vapo"]) == 0
    shown = capsys.readouterr().out
    assert "decay = 1 - 1 / (alpha * l)" in shown
    assert "options  discount=1.0, alpha=0.05, scale_by_std=True" in shown
    assert "--estimator vapo --trainer.algorithm ppo --steps 2" in shown
    assert "algorithm vapo: estimator vapo, loss clip_clone, normalise token_mean" in shown
    assert "estimator vapo:\ndecay = 1 - 1 / (alpha * l)" in shown
    assert "normalise token_mean:" in shown
    assert main(["algorithm", "show", "gsop"]) == 2
    assert "algorithm 'gsop' is unknown, did you mean gspo" in capsys.readouterr().err


MEDIAN = """
import numpy as np

from agentrl.trainer.algorithms import estimators, presets
from agentrl.trainer.algorithms.advantage import token_advantages
from agentrl.trainer.algorithms.needs import needs


@needs("group of 2")
def median(batch):
    \"\"\"Each reward less the median of its group.

    A_i = r_i - median(r). Rewards 1, 0 and 0 give 1, 0 and 0.
    \"\"\"
    group_E, rewards_E = batch.group_E, batch.rewards_E
    medians = {g: np.median(rewards_E[group_E == g]) for g in set(group_E.tolist())}
    return token_advantages(batch, rewards_E - np.array([medians[g] for g in group_E.tolist()]))


estimators.BUILT_IN["median"] = median
presets.ALGORITHMS["median_clip"] = {"estimator": "median", "clip.high": 0.3}
"""


def test_a_new_algorithm_is_a_function_and_a_line(tmp_path: Path) -> None:
    train = ["train", "--env", "number_guess", "--algorithm", "median_clip", "--dry-run"]
    code = f"{MEDIAN}\nimport sys\nfrom agentrl.cli import main\n"
    code += f"main(['algorithm', 'show', 'median_clip'])\nsys.exit(main({train!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "A_i = r_i - median(r)" in done.stdout
    assert "trainer.clip.high=0.3" in done.stdout
    assert len(MEDIAN.strip().splitlines()) <= 30


def test_a_function_of_ones_own_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from agentrl.trainer.algorithms.needs import needs\n\n\n"
        "@needs('reference')\n"
        "def towards(logprobs_K, tokens, *, scale=2.0, how):\n"
        '    """Towards the reference (arXiv:2402.03300).\n\n    By scale * r.\n    """\n\n\n'
        "def plain(batch):\n    return batch.logprobs_N\n\n\nNOTHING = 3\n\n\n"
        "def even(batch):\n    return batch.mask_N.astype('float32')\n\n\n"
        "def keep(batch, *, cap=2.0):\n    return batch\n\n\n"
        "def wrong(batch):\n    return batch.rewards_E\n"
    )
    assert main(["algorithm", "show", f"{own}:towards"]) == 0
    shown = capsys.readouterr().out
    for said in (
        f"loss {own}:towards: Towards the reference (arXiv:2402.03300)",
        "By scale * r.",
        "paper    arXiv:2402.03300",
        "options  scale=2.0, how=to be given",
        "needs    reference",
        f"agentrl train --env calculator --loss {own}:towards --trainer.kl.coef 0.01 --steps 2",
    ):
        assert said in shown
    assert main(["algorithm", "show", "--json", f"{own}:plain"]) == 0
    [entry] = json.loads(capsys.readouterr().out)
    assert (entry["kind"], entry["paper"], entry["needs"]) == ("estimator", "none named", [])
    for name, kinds in (("even", ["estimator", "normalisation"]), ("keep(cap=3)", ["correction"])):
        assert main(["algorithm", "show", "--json", f"{own}:{name}"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [entry["kind"] for entry in found] == kinds
        assert all(shlex.quote(f"{own}:{name}") in entry["command"] for entry in found)
    for name, said in (
        ("NOTHING", "is of type int, expected a function"),
        ("planes", "plain"),
        ("wrong", "float64 of shape (4,), expected a float32 array of 20, one for each token"),
        ("keep(cpa=3)", "has no option cpa, did you mean cap"),
    ):
        assert main(["algorithm", "show", f"{own}:{name}"]) == 2
        assert said in capsys.readouterr().err


def test_one_episode_a_task_is_enough_for_reinforce(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--estimator",
        "reinforce",
        "--rollout.group-size",
        "1",
        "--rollout.tasks-per-step",
        "8",
    ]
    assert main(["train", "--env", "number_guess", "--dry-run", *flags]) == 0


def test_an_algorithm_sets_what_nobody_else_does() -> None:
    flags = ["--env", "number_guess", "--algorithm", "vapo", "--trainer.clip.high", "0.5"]
    loaded = load_run_config(flags=flags)
    trainer = loaded.config.trainer
    assert (trainer.estimator, trainer.loss, trainer.has_critic) == ("vapo", "clip_clone", True)
    assert trainer.clip.high == 0.5
    assert loaded.origins["trainer.estimator"] == "algorithm vapo"
    assert loaded.origins["trainer.clip.high"] == "--trainer.clip.high"
    assert load_run_config(flags=["--algorithm", "icepop"]).config.trainer.correct == "icepop"
    none = ["--algorithm", "icepop", "--trainer.correct", "none"]
    assert load_run_config(flags=none).config.trainer.correct == "none"
    other = load_run_config(flags=["--algorithm", "gspo", "--estimator", "rloo"]).config.trainer
    assert (other.estimator, other.loss, other.has_critic) == ("rloo", "gspo", False)


def test_an_algorithm_of_the_command_line_is_whole_over_the_file_of_a_run(tmp_path: Path) -> None:
    """A run's config.toml has each key, also those that its own algorithm set."""

    def trained(file: Path, *flags: str) -> tuple[str, str, str, float, float]:
        config = load_run_config(file=file, flags=flags).config
        names = config.trainer.estimator, config.trainer.loss, config.trainer.normalise
        return names[0], names[1], names[2], config.trainer.clip.high, config.rollout.refill

    file = tmp_path / "config.toml"
    file.write_text(dump_config(load_run_config(flags=["--env", "calculator"])))
    assert trained(file) == ("reinforce", "clip", "token_mean", 0.2, 1.0)
    assert trained(file, "--algorithm", "gspo") == ("grpo", "gspo", "sequence_mean", 0.2, 1.0)
    assert trained(file, "--algorithm", "dapo") == ("grpo", "clip", "token_mean", 0.28, 3.0)
    file.write_text(dump_config(load_run_config(flags=["--algorithm", "dapo"])))
    assert trained(file, "--algorithm", "rloo") == ("rloo", "clip", "token_mean", 0.2, 1.0)
    own = [*file.read_text().splitlines(), ""]
    own[own.index('loss = "clip"  # algorithm dapo')] = 'loss = "cispo"'
    file.write_text("\n".join(own))
    assert trained(file, "--algorithm", "gspo") == ("grpo", "cispo", "sequence_mean", 0.2, 1.0)
    file.write_text('[trainer]\nloss = "clip"\n')  # by somebody who says nothing of an algorithm
    assert trained(file, "--algorithm", "gspo")[1] == "clip"


def test_a_loss_of_ones_choice_does_not_come_with_the_preset_s_estimator() -> None:
    for flag, loss in (("--loss", "gspo"), ("--estimator", "rloo")):
        trainer = load_run_config(flags=["--env", "calculator", flag, loss]).config.trainer
        assert trainer.algorithm == "grpo"
        assert trainer.estimator == ("grpo" if flag == "--loss" else "rloo")


def test_an_algorithm_sets_keys_of_the_sampling_side_too() -> None:
    """They lie over what a model and an environment set, and under what the user says."""
    flags = ["--env", "calculator", "--algorithm", "pf_ppo", "--rollout.filter-share", "0.25"]
    loaded = load_run_config(flags=flags)
    rollout = loaded.config.rollout
    assert (rollout.filter, rollout.filter_share, rollout.group_size) == ("best_worst", 0.25, 8)
    assert loaded.config.trainer.has_critic
    assert loaded.origins["rollout.group_size"] == "algorithm pf_ppo"
    assert loaded.origins["rollout.filter_share"] == "--rollout.filter-share"
    dapo = load_run_config(flags=["--algorithm", "dapo"])
    assert dapo.config.trainer.clip.high == 0.28
    assert (dapo.config.rollout.refill, dapo.config.rollout.overlong_buffer) == (3.0, 0.2)
    text = dump_config(dapo)
    assert "refill = 3.0  # algorithm dapo\n" in text
    assert load_run_config(flags=[]).config.rollout.refill == 1.0


def test_what_an_algorithm_costs_in_episodes_is_said() -> None:
    [dapo] = [entry for entry in entries() if entry.name == "dapo"]
    assert dapo.paper == "arXiv:2503.14476"
    assert dapo.cost == "no passes beside the update's 3; up to 3 times the episodes"
    assert dapo.options["rollout.refill"] == 3.0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_an_algorithm_costs_in_passes_is_what_its_recipe_makes(name: str) -> None:
    [entry] = [entry for entry in entries() if (entry.name, entry.kind) == (name, "algorithm")]
    needs = make_recipe(TrainerConfig.model_validate({"algorithm": name})).needs
    made = {"critic": 1 + 3, "reference": 1, "teacher": 1, "proximal": 1}
    assert entry.passes == sum(made[need] for need in needs & made.keys())
    assert f"{entry.passes or 'no'} pass" in entry.cost


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_can_be_made(name: str) -> None:
    config = TrainerConfig.model_validate({"algorithm": name})
    assert make_estimator(config).label == f"estimator {config.estimator}"
    assert make_loss(config).label == f"loss {config.loss}"
    assert make_normalisation(config).label == f"normalisation {config.normalise}"
    correction = make_correction(config)
    assert (correction is None) == (config.correct == "none")
    assert correction is None or correction.label == f"correction {config.correct}"
    assert load_run_config(flags=["--algorithm", name]).config.trainer.estimator == config.estimator


def test_an_estimator_may_need_the_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import numpy as np\n"
        "from agentrl.trainer.algorithms.needs import needs\n\n\n"
        "@needs('reference')\n"
        "def towards(batch):\n"
        "    return batch.reference_N * np.float32(1)\n"
    )
    flags = ["--estimator", f"{own}:towards", "--trainer.kl.coef", "0.1"]
    assert main(["train", "--env", "number_guess", "--dry-run", *flags]) == 0
    assert main(["train", "--env", "number_guess", "--dry-run", *flags[:2]]) == 2
    assert "towards needs a reference: set trainer.kl.coef above 0" in capsys.readouterr().err
