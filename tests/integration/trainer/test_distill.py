"""Distillation from a teacher: the policy's own episodes bring it nearer to another model."""

# pyright: reportUnknownMemberType=false
# torch and transformers are typed in part only.

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.errors import ConfigError
from agentrl.orchestration import jobs
from agentrl.orchestration.load import load_run_config
from agentrl.run_dir import read_lines
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.trainer import LocalTrainer
from tests.unit.trainer.batches import batch_of, plain_logprobs, random_segments, tiny_model

ENV = """
from agentrl.envs import ToolEnv
from agentrl.types import Task

class Talk(ToolEnv):
    max_turns = 1
    tasks = [Task(prompt=f"Say something about {i}.", answer="") for i in range(8)]

    def score(self, answer):
        return 0.0
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an environment, a student and a teacher, both of random weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.py").write_text(ENV)
    for name, seed in (("student", 0), ("teacher", 1)):
        shutil.copytree(resolve_model("tiny", seed=seed), tmp_path / name)
    return tmp_path


def train(steps: int, **keys: object) -> list[Mapping[str, object]]:
    """The metrics of each step of a short run."""
    settings: dict[str, object] = {
        "env": [{"name": "talk.py:Talk"}],
        "model": "student",
        "steps": steps,
        "trainer.lr": 3e-3,
        "trainer.algorithm": "distill",
        "trainer.reference": "teacher",
        "rollout.group_size": 1,
        "rollout.tasks_per_step": 16,
        "rollout.max_new_tokens": 24,
        "checkpoint.every": 100,
        "threads": 1,
        "deterministic": True,
    }
    loaded = load_run_config(keywords=settings | keys)
    return [*read_lines(jobs.train(loaded).path / "metrics.jsonl")]


@pytest.mark.usefixtures("workplace")
def test_the_policy_comes_nearer_to_the_teacher() -> None:
    kl = [float(str(step["kl"])) for step in train(8)]
    assert kl[0] > 1
    assert kl[-1] < 0.7 * kl[0]


@pytest.mark.nightly
@pytest.mark.usefixtures("workplace")
@pytest.mark.timeout(300)
def test_ranks_ask_the_same_teacher() -> None:
    alone, shared = train(1)[0], train(1, **{"trainer.ranks": 2})[0]
    for key in ("kl", "loss", "grad_norm"):
        assert float(str(shared[key])) == pytest.approx(float(str(alone[key])), rel=1e-4)


@pytest.mark.parametrize("rank", [0, 4])
def test_the_reference_is_the_model_that_was_given(rank: int) -> None:
    teacher = tiny_model(seed=1)
    settings = {"reference": "teacher", "lora": {"rank": rank}}
    trainer = LocalTrainer(
        tiny_model(), TrainerConfig.model_validate(settings), total_steps=1, reference=teacher
    )
    batch = batch_of(random_segments([9, 12, 5]))
    found_N = trainer.with_reference(batch).reference_N
    assert found_N is not None
    own = plain_logprobs(tiny_model(seed=1), batch).detach().numpy()
    assert found_N == pytest.approx(own * batch.mask_N, abs=1e-4)


BAD = {
    "": "estimator distill needs a teacher: set trainer.reference",
    "student": "estimator distill needs a teacher: set trainer.reference to another model",
    "nowhere": "is no folder",
    "foreign": "trainer.reference: .*foreign has another vocabulary than .*'<extra>' is 768 there "
    "and no token here",
    "short": "trainer.reference: the model takes 32 tokens",
}


@pytest.mark.parametrize("reference", BAD)
def test_a_teacher_that_cannot_be_compared_is_refused(reference: str, workplace: Path) -> None:
    if reference in ("foreign", "short"):
        shutil.copytree(workplace / "teacher", workplace / reference)
    if reference == "foreign":
        file = workplace / reference / "tokenizer.json"
        content = json.loads(file.read_text())
        content["added_tokens"].append({**content["added_tokens"][-1], "id": 768})
        content["added_tokens"][-1]["content"] = "<extra>"
        file.write_text(json.dumps(content))
    if reference == "short":
        file = workplace / reference / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 32}))
    with pytest.raises(ConfigError, match=BAD[reference]):
        train(1, **{"trainer.reference": reference})


def test_a_reference_that_nothing_reads_is_refused(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["train", "--env", "talk.py:Talk", "--trainer.reference", "teacher", "--dry-run"]
    assert main([*said, "--group-size", "2"]) == 2
    assert f"trainer.reference: got {workplace / 'teacher'}, but nothing" in capsys.readouterr().err
    assert main([*said, "--trainer.kl.coef", "0.1"]) == 0
    distill = [*said, "--algorithm", "distill"]
    for unread in ("--trainer.kl.where=reward", "--trainer.reward.scale=2"):
        assert main([*distill, "--trainer.kl.coef", "0.1", unread]) == 2
        assert "estimator distill, which reads the teacher alone" in capsys.readouterr().err
