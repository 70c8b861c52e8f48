"""A loss of the user's own on several ranks, and what becomes of one that is given up there."""

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from agentrl.engine.local.models.load import load_model
from agentrl.errors import RunError
from agentrl.trainer.algorithms.corrections import CheckedCorrection
from agentrl.trainer.algorithms.losses import make_loss
from agentrl.trainer.algorithms.rollout_correction import icepop, token_ratios
from agentrl.trainer.executor import RankTrainer
from agentrl.trainer.protocol import Trainer
from agentrl.trainer.roles import TrainerPlan
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import Batch
from tests.integration.ranks.cases import CONFIG, ragged

FILE = """
import time

class Scaled:
    def __init__(self, scale=3.0):
        self.scale = scale

    def __call__(self, logprobs_K, tokens):
        total = -(tokens.weights_K * tokens.advantages_K * logprobs_K).sum()
        return self.scale * total, {"scale": self.scale * len(logprobs_K)}

def hanging(logprobs_K, tokens):
    if not tokens.batch.episode_ids[0].startswith("made-up"):
        time.sleep(600)
    return Scaled()(logprobs_K, tokens)
"""


def trainers(folder: Path, ref: str, given: object = None) -> tuple[Trainer, Trainer]:
    """One on two ranks and one in this process."""
    config = CONFIG.model_copy(update={"ranks": 2, "loss": ref})
    loss = make_loss(config, given)
    plan = TrainerPlan(folder=folder, config=config, total_steps=2, threads=1, loss=loss)
    return RankTrainer(plan), LocalTrainer(load_model(folder), config, total_steps=2, loss=loss)


def corrected(batch: Batch, trainer: Trainer) -> Batch:
    """Without the tokens whose ratio is below half of the median, weighed."""
    batch = trainer.with_outputs(batch, ["proximal"])
    middle = float(np.median(token_ratios(batch)[batch.mask_N]))
    correct = partial(icepop, low=middle / 2, high=5.0)
    after = CheckedCorrection("correction icepop", correct)(batch)
    assert after.weights_N is not None
    assert after.factors_N is not None
    return replace(after, weights_N=after.weights_N * after.factors_N)


@pytest.mark.parametrize("how", ["file", "object without a name"])
def test_ranks_have_the_loss_of_the_run(tiny_folder: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "loss.py").write_text(FILE)
    scale = 2.0

    def scaled(logprobs_K: Any, tokens: Any) -> Any:
        total = -(tokens.weights_K * tokens.advantages_K * logprobs_K).sum()
        return scale * total, {"scale": scale * len(logprobs_K)}

    if how == "file":
        pair, expected = trainers(tiny_folder, f"{tmp_path}/loss.py:Scaled"), 3.0
    else:
        pair, expected = trainers(tiny_folder, "<scaled>", scaled), 2.0
    batch = ragged((20, 7, 19, 3), 3)
    try:
        ours, alone = (trainer.update(batch) for trainer in pair)
        assert ours.loss == pytest.approx(alone.loss, rel=1e-4)
        assert ours.grad_norm == pytest.approx(alone.grad_norm, rel=1e-3)
        assert ours.loss_statistics == pytest.approx(alone.loss_statistics)
        assert ours.loss_statistics["scale"] == pytest.approx(expected)
        assert pair[0].step == 1
        one, other = (corrected(batch, trainer) for trainer in pair)
        assert 0 < one.num_trained < batch.num_trained
        assert one.mask_N.tolist() == other.mask_N.tolist()
        assert one.weights_N == pytest.approx(other.weights_N, rel=1e-3)
        ours, alone = pair[0].update(one), pair[1].update(other)
        assert ours.loss == pytest.approx(alone.loss, rel=1e-3)
        assert ours.num_verified == ours.num_trained == one.num_trained
    finally:
        pair[0].close()


def test_an_update_on_ranks_is_given_up_with_them(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text(FILE)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    trainer, _ = trainers(tiny_folder, f"{tmp_path}/loss.py:hanging")
    failed: list[RunError] = []

    def update(batch: Batch) -> None:
        try:
            trainer.update(batch)
        except RunError as error:
            failed.append(error)

    thread = threading.Thread(target=update, args=(ragged((9, 12), 0),))
    thread.start()
    while not trainer.has_changed:
        thread.join(0.05)
    thread.join(0.5)  # into the loss
    assert not trainer.give_up()
    thread.join(20)
    assert "ended during update" in str(failed[0])
    trainer.close()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
