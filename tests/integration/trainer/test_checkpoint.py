"""Checkpoints: the same bits after a restart, and broken files named."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import logging
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.errors import RunError
from agentrl.trainer import KlConfig, RatioBandConfig, TrainerConfig
from agentrl.trainer import checkpoint as module
from agentrl.trainer.checkpoint import latest_valid
from agentrl.trainer.export import export_hf
from agentrl.trainer.trainer import LocalTrainer
from tests.unit.trainer.batches import batch_of, on_policy, random_segments, tiny_model

CONFIG = TrainerConfig(
    lr=1e-2,
    schedule="cosine",
    warmup_steps=2,
    weight_decay=0.1,
    token_budget=40,
    kl=KlConfig(coef=0.1),
    ratio_band=RatioBandConfig(mean=1e9, max=1e9),
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_trainer(seed: int = 0) -> LocalTrainer:
    return LocalTrainer(tiny_model(seed), CONFIG, total_steps=6)


def train(trainer: LocalTrainer, first: int, last: int) -> None:
    for step in range(first, last):
        segments = random_segments((12, 20, 7, 31), seed=step)
        batch = trainer.with_outputs(batch_of(segments, advantages=(1, -1, 2, -2)), ["reference"])
        assert trainer.update(batch).skipped is None


def weights(trainer: LocalTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.weights().named_tensors()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


RESUME = """
import sys
from pathlib import Path
import torch
from tests.integration.trainer.test_checkpoint import make_trainer, train, weights
torch.set_num_threads(1)
trainer = make_trainer()
state = trainer.load(Path(sys.argv[1]))
assert state == {"sampler": [2, "b"]}, state
train(trainer, 2, 4)
torch.save(weights(trainer), sys.argv[2])
"""


def test_settings_of_the_optimizer_are_those_of_now(tmp_path: Path) -> None:
    trainer = make_trainer()
    train(trainer, 0, 1)
    path = trainer.save(tmp_path, step=1, state={})
    other = CONFIG.model_copy(update={"weight_decay": 0.5, "beta2": 0.5})
    resumed = LocalTrainer(tiny_model(1), other, total_steps=6)
    resumed.load(path)
    assert same(weights(resumed), weights(trainer))
    matrices, vectors = resumed.optimizer.param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.5, 0.0)
    assert matrices["betas"] == (0.9, 0.5)


def test_a_fresh_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    straight = make_trainer()
    train(straight, 0, 2)
    path = straight.save(tmp_path / "checkpoints", step=2, state={"sampler": [2, "b"]}, keep=2)
    train(straight, 2, 4)
    out = tmp_path / "weights.pt"
    subprocess.run([sys.executable, "-c", RESUME, str(path), str(out)], check=True, timeout=120)
    assert same(torch.load(out), weights(straight))
    assert straight.step == 4


def test_a_checkpoint_before_the_first_step_counts_no_step(tmp_path: Path) -> None:
    straight, resumed = make_trainer(), make_trainer(seed=5)
    train(straight, 0, 2)
    untouched = make_trainer()
    resumed.load(untouched.save(tmp_path, step=0, state={}))
    # The reference of the penalty is the starting weights, so `resumed` must begin from them.
    resumed = LocalTrainer(resumed.model, CONFIG, total_steps=6)
    resumed.load(tmp_path / "step-000000")
    train(resumed, 0, 2)
    train(untouched, 0, 2)
    assert same(weights(resumed), weights(straight))
    assert same(weights(untouched), weights(straight))


def test_random_states_come_back(tmp_path: Path) -> None:
    trainer = make_trainer()
    path = trainer.save(tmp_path, step=1, state={})

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    first = draw()
    trainer.load(path)
    assert draw() == first


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "manifest"])
def test_a_broken_checkpoint_is_named_and_skipped(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer()
    good = trainer.save(tmp_path, step=1, state={})
    bad = trainer.save(tmp_path, step=2, state={})
    victim = next((bad / "weights").glob("*.distcp"))
    content = bytearray(victim.read_bytes())
    if damage == "cut":
        victim.write_bytes(content[:-1])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    elif damage == "remove":
        victim.unlink()
    else:
        victim = bad / "manifest.json"
        victim.write_text(victim.read_text()[:-10])
    with pytest.raises(RunError, match=victim.name):
        trainer.load(bad)
    with caplog.at_level(logging.WARNING):
        assert latest_valid(tmp_path) == good
    assert victim.name in caplog.text


def test_an_unfinished_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    good = trainer.save(tmp_path, step=1, state={})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_manifest", full)
    with pytest.raises(RunError, match="No space left on device"):
        trainer.save(tmp_path, step=2, state={})
    assert list(tmp_path.iterdir()) == [good]


def test_too_little_room_is_refused_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def little(_: Path) -> int:
        return 1000

    monkeypatch.setattr(module, "free_bytes", little)
    with pytest.raises(RunError, match="free disk space"):
        make_trainer().save(tmp_path, step=1, state={})
    assert not list(tmp_path.iterdir())


def test_rotation_keeps_the_newest_whole_ones(tmp_path: Path) -> None:
    trainer = make_trainer()
    for step in (1, 2, 3):
        trainer.save(tmp_path, step=step, state={}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000002", "step-000003"]
    (tmp_path / "step-000003" / "manifest.json").unlink()
    trainer.save(tmp_path, step=4, state={}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000002", "step-000004"]
    # A broken one beyond the step that the run went on from does not push the new one out.
    shutil.copytree(tmp_path / "step-000004", tmp_path / "step-000009")
    (tmp_path / "step-000009" / "state.json").unlink()
    trainer.save(tmp_path, step=5, state={}, keep=1)
    assert latest_valid(tmp_path) == tmp_path / "step-000005"


def test_only_finite_values_are_saved(tmp_path: Path) -> None:
    trainer = make_trainer()
    train(trainer, 0, 1)
    parameter = next(trainer.model.parameters())
    trainer.optimizer.state[parameter]["exp_avg"][0] = float("nan")
    with pytest.raises(RunError, match=r"exp_avg of model\.embed_tokens\.weight"):
        trainer.save(tmp_path, step=1, state={})
    with torch.no_grad():
        parameter[0] = float("inf")
    with pytest.raises(RunError, match=r"model\.embed_tokens\.weight has values"):
        export_hf(trainer.model, tmp_path, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_another_model_is_refused(tmp_path: Path) -> None:
    path = make_trainer().save(tmp_path, step=1, state={})
    model = tiny_model()
    model.resize_token_embeddings(40, mean_resizing=False)
    with pytest.raises(RunError, match="does not fit the model"):
        LocalTrainer(model, CONFIG, total_steps=6).load(path)


def test_an_exported_folder_loads_with_the_same_logits(tmp_path: Path) -> None:
    trainer = make_trainer()
    train(trainer, 0, 1)
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    (tokenizer / "chat_template.jinja").write_text("{{ messages }}")
    export_hf(trainer.model, tokenizer, tmp_path / "model")
    folder = export_hf(trainer.model, tokenizer, tmp_path / "model")
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(9)[None]
    assert torch.equal(loaded(input_ids=ids).logits, trainer.model(input_ids=ids).logits)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "tokenizer"]


def test_a_resumed_trainer_is_gated_again(tmp_path: Path) -> None:
    trainer = LocalTrainer(tiny_model(), TrainerConfig(), total_steps=4)
    path = trainer.save(tmp_path, step=1, state={})
    resumed = LocalTrainer(tiny_model(seed=3), TrainerConfig(), total_steps=4)
    batch = on_policy(tiny_model(seed=3), random_segments((9, 9)), advantages=(1, -1))
    resumed.load(path)
    with pytest.raises(RunError, match="before the first update"):
        resumed.update(batch)
