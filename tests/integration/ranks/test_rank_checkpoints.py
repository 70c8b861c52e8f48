"""Checkpoints of several ranks: any number reads them, whole or not at all, the best one stays."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentrl.errors import RunError
from agentrl.trainer import TrainerConfig
from agentrl.trainer import checkpoint as module
from agentrl.trainer.checkpoint import latest_valid
from agentrl.trainer.fsdp import local, whole
from agentrl.trainer.parallel_dims import Ranks
from agentrl.trainer.trainer import LocalTrainer
from agentrl.workers.dispatch import gathered
from tests.integration.ranks.cases import CONFIG, ragged
from tests.integration.ranks.conftest import Group
from tests.unit.trainer.batches import tiny_model

LENGTHS = (20, 7, 19, 3, 18, 33)
STEADY = TrainerConfig(lr=1e-2, weight_decay=0.1, ratio_band=CONFIG.ratio_band)
Weights = dict[str, Tensor]


def trained(trainer: LocalTrainer, first: int, last: int) -> Weights:
    for step in range(first, last):
        assert trainer.update(ragged(LENGTHS, step)).skipped is None
    return {n: whole(t.detach()).clone() for n, t in trainer.model.named_parameters()}


@gathered
def save_and_go_on(ranks: Ranks, folder: Path, background: bool) -> Weights:
    trainer = LocalTrainer(tiny_model(), STEADY, total_steps=4, ranks=ranks)
    trained(trainer, 0, 2)
    trainer.save(folder, step=2, state={"here": 1}, background=background)
    weights = trained(trainer, 2, 4)
    trainer.close()
    return weights


@gathered
def load_and_go_on(ranks: Ranks, path: Path) -> Weights:
    trainer = LocalTrainer(tiny_model(seed=9), STEADY, total_steps=4, ranks=ranks)
    assert trainer.load(path) == {"here": 1}
    assert trainer.step == 2
    return trained(trainer, 2, 4)


@pytest.mark.parametrize("background", [False, True])
def test_another_number_of_ranks_goes_on(group: Group, tmp_path: Path, background: bool) -> None:
    expected = group(2).ask(save_and_go_on, tmp_path, background)[0]
    path = latest_valid(tmp_path)
    assert path is not None
    assert path.name == "step-000002"
    assert len(list((path / "weights").glob("*.distcp"))) == 2
    for size in (1, 2, 3):
        for weights in group(size).ask(load_and_go_on, path):
            for name, weight in expected.items():
                assert size != 2 or torch.equal(weights[name], weight)
                assert (weights[name] - weight).norm() / weight.norm() < 1e-5


@gathered
def spoil(ranks: Ranks, folder: Path, what: str) -> str:
    """What every rank says where one of them holds a number that is not finite."""
    trainer = LocalTrainer(tiny_model(), STEADY, total_steps=4, ranks=ranks)
    trained(trainer, 0, 1)
    parameter = trainer.model.get_parameter("model.layers.0.mlp.up_proj.weight")
    tensor = parameter if what == "weight" else trainer.optimizer.state[parameter]["exp_avg"]
    if ranks.rank == 1:
        with torch.no_grad():
            local(tensor)[0] = float("nan")
    with pytest.raises(RunError) as caught:
        trainer.save(folder, step=1, state={})
    return str(caught.value)


@pytest.mark.parametrize("what", ["weight", "exp_avg"])
def test_what_is_not_finite_on_one_rank_is_saved_by_none(
    group: Group, tmp_path: Path, what: str
) -> None:
    said = group(2).ask(spoil, tmp_path, what)
    assert said[0] == said[1]
    assert "model.layers.0.mlp.up_proj.weight has values that are not finite" in said[0]
    assert not list(tmp_path.iterdir())


@gathered
def fail_in_background(ranks: Ranks, folder: Path) -> list[str]:
    """What every rank says where the first one's disk is full when it names the checkpoint."""
    trainer = LocalTrainer(tiny_model(), STEADY, total_steps=4, ranks=ranks)
    trained(trainer, 0, 1)
    trainer.save(folder, step=1, state={})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "write_manifest", full)
        trainer.save(folder, step=2, state={}, background=True)
        while trainer.saving is not None and not trainer.saving.done():
            time.sleep(0.01)
        with pytest.raises(RunError) as caught:
            trained(trainer, 1, 2)
        said.append(str(caught.value))
    trained(trainer, 1, 2)
    return said


def test_a_write_that_fails_behind_the_back_is_raised_by_the_next_step(
    group: Group, tmp_path: Path
) -> None:
    for said in group(2).ask(fail_in_background, tmp_path):
        assert "step-000002: could not be written" in said[0]
    assert list(tmp_path.iterdir()) == [tmp_path / "step-000001"]
    assert latest_valid(tmp_path) == tmp_path / "step-000001"


@gathered
def load_fault(ranks: Ranks, path: Path, vocab: int) -> str:
    model = tiny_model()
    model.resize_token_embeddings(vocab, mean_resizing=False)
    trainer = LocalTrainer(model, STEADY, total_steps=4, ranks=ranks)
    with pytest.raises(RunError) as caught:
        trainer.load(path)
    return str(caught.value)


def test_a_checkpoint_cut_short_or_of_another_model(group: Group, tmp_path: Path) -> None:
    group(2).ask(save_and_go_on, tmp_path, False)
    path = tmp_path / "step-000002"
    for size in (1, 2):
        for said in group(size).ask(load_fault, path, 40):
            assert r"model.embed_tokens.weight has shape (31, 32), expected (40, 32)" in said
    victim = next((path / "weights").glob("*.distcp"))
    victim.write_bytes(victim.read_bytes()[:-1])
    for said in group(2).ask(load_fault, path, 31):
        assert f"{victim} has" in said
        assert "use an earlier checkpoint" in said


def test_the_best_stays_beside_the_newest(tmp_path: Path) -> None:
    trainer = LocalTrainer(tiny_model(), STEADY, total_steps=4)
    for step, metric in enumerate((0.2, 0.9, None, 0.9, 0.1, 0.3)):
        trainer.save(tmp_path, step=step, state={}, keep=2, metric=metric)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-000003", "step-000004", "step-000005"]
