"""Several updates from one batch: the same as one by one, and the trust region at work."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from agentrl.errors import RunError
from agentrl.trainer import RatioBandConfig, StepStats, TrainerConfig
from agentrl.trainer import trainer as module
from agentrl.trainer.algorithms.minibatches import split_minibatches
from agentrl.trainer.algorithms.recipe import make_recipe
from agentrl.trainer.trainer import LocalTrainer
from agentrl.types import Batch
from tests.unit.trainer.batches import (
    batch_of,
    on_policy,
    plain_logprobs,
    random_segments,
    tiny_model,
    with_logprobs,
)

ONE = {"minibatches": 1, "epochs": 1}
CONFIG = TrainerConfig(estimator="reinforce", lr=3e-3, minibatches=4, epochs=2)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def played(model: LlamaForCausalLM, seed: int = 0) -> Batch:
    """Eight episodes of four groups, that differ in length, with rewards of 1 and -1."""
    batch = on_policy(model, random_segments((12, 9, 25, 11, 7, 18, 9, 14), seed), version=seed)
    groups = np.array([0, 0, 1, 1, 2, 2, 3, 3], dtype=np.int32)
    return replace(batch, group_E=groups, rewards_E=np.tile([1.0, -1.0], 4), weights_N=None)


def step(trainer: LocalTrainer, batch: Batch) -> StepStats:
    return trainer.update(make_recipe(trainer.config).prepare(batch, trainer))


def test_what_older_weights_sampled_is_not_judged_by_the_mini_batch_that_it_is_alone_in() -> None:
    """The first mini-batch has nothing of the step's newest version, the second one all of it."""
    model, late = tiny_model(), random_segments((12, 9, 8, 11))
    honest = random_segments((10, 14, 9, 7), seed=9)
    bare = batch_of(honest)
    with torch.no_grad():
        logprobs_N = plain_logprobs(model, bare).numpy()
    now = [with_logprobs(s, logprobs_N[bare.row(r)], 1) for r, s in enumerate(honest)]
    batch = batch_of([*late, *now], advantages=[1.0, -1.0] * 4)
    parts_E = np.repeat(np.array([0, 1], dtype=np.int32), 4)
    trainer = LocalTrainer(model, TrainerConfig(minibatches=2), total_steps=2)
    stats = trainer.update(replace(batch, minibatch_E=parts_E))
    assert (stats.alarm, stats.skipped, stats.step) == (None, None, 2)
    trainer = LocalTrainer(tiny_model(), TrainerConfig(minibatches=2), total_steps=2)
    with pytest.raises(RunError, match="before the first update"):
        trainer.update(
            replace(batch_of(late, advantages=[1.0, -1.0] * 2), minibatch_E=parts_E[2:6])
        )


def test_a_step_is_its_mini_batches_one_by_one() -> None:
    model, other = tiny_model(), tiny_model()
    batch = played(model)
    trainer = LocalTrainer(model, CONFIG, total_steps=1)
    ready = make_recipe(CONFIG).prepare(batch, trainer)
    stats = trainer.update(ready)
    alone = LocalTrainer(other, CONFIG.model_copy(update=ONE), total_steps=8)
    parts = [part for part, _ in split_minibatches(ready)]
    assert [len(part.episode_ids) for part in parts] == [2, 2, 2, 2]
    for part in parts:
        assert part.weights_N is not None
        assert part.weights_N.sum() == pytest.approx(1)
    each = [alone.update(replace(part, minibatch_E=None)) for part in parts * 2]
    assert stats.step == trainer.step == trainer.attempted == alone.step == 8
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert stats.loss == pytest.approx(np.mean([one.loss for one in each]))
    tokens = [one.num_trained for one in each]
    for name in ("ratio_mean", "entropy", "ratio_deviation_mean"):
        expected = np.average([getattr(one, name) for one in each], weights=tokens)
        assert getattr(stats, name) == pytest.approx(expected), name
    clipped = np.average([one.loss_statistics["clip_fraction"] for one in each], weights=tokens)
    assert stats.loss_statistics["clip_fraction"] == pytest.approx(clipped)
    assert stats.gap_max == each[0].gap_max < 1e-4
    assert (stats.num_trained, stats.num_verified) == (batch.num_trained, batch.num_trained)


def test_the_trust_region_is_at_work() -> None:
    """One update is on policy, so nothing is clipped; eight are not."""

    def clipped(**given: object) -> float:
        model = tiny_model()
        trainer = LocalTrainer(model, CONFIG.model_copy(update=given), total_steps=1)
        return step(trainer, played(model)).loss_statistics["clip_fraction"]

    assert clipped(**ONE) == 0
    assert clipped() > 0.05


def test_only_the_first_update_is_held_against_the_engine() -> None:
    model = tiny_model()
    narrow = RatioBandConfig(mean=1e-3, max=1e-2)
    trainer = LocalTrainer(model, CONFIG.model_copy(update={"ratio_band": narrow}), total_steps=1)
    stats = step(trainer, played(model))
    assert stats.alarm is None
    assert stats.ratio_deviation_max > narrow.max > stats.gap_max
    wrong = LocalTrainer(tiny_model(1), trainer.config, total_steps=1)
    with pytest.raises(RunError, match="before the first update the importance ratios"):
        step(wrong, played(model))
    assert wrong.step == 0


def test_a_resumed_run_has_the_same_mini_batches(tmp_path: Path) -> None:
    straight = LocalTrainer(tiny_model(), CONFIG, total_steps=3)
    batch = played(tiny_model())
    step(straight, batch)
    path = straight.save(tmp_path, step=1, state={})
    resumed = LocalTrainer(tiny_model(2), CONFIG, total_steps=3)
    resumed.load(path)
    assert resumed.attempted == 8
    orders: list[list[int]] = []
    for trainer in (straight, resumed):
        ready = make_recipe(CONFIG).prepare(batch, trainer)
        assert ready.minibatch_E is not None
        orders.append(ready.minibatch_E.tolist())
        trainer.update(ready)
    assert orders[0] == orders[1]
    for ours, theirs in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_rate_reaches_0_although_steps_and_groups_were_left_out() -> None:
    model = tiny_model()
    config = CONFIG.model_copy(update={"schedule": "linear"})
    trainer = LocalTrainer(model, config, total_steps=3)
    batch = played(model)
    step(trainer, batch.take_episodes(batch.group_E < 3))
    assert (trainer.step, trainer.attempted) == (6, 8)
    equal = step(trainer, replace(batch, rewards_E=np.zeros(8)))
    assert equal.skipped == "every advantage is 0, as in groups of equal rewards"
    assert (equal.num_skipped, trainer.attempted) == (8, 16)
    assert step(trainer, batch).lr == pytest.approx(CONFIG.lr / 24)
    assert trainer.attempted == 24


def test_a_mini_batch_without_advantages_is_left_out_alone() -> None:
    model = tiny_model()
    trainer = LocalTrainer(model, CONFIG, total_steps=1)
    batch = played(model)
    stats = step(trainer, replace(batch, rewards_E=np.array([0.0] * 6 + [1.0, -1.0])))
    assert (stats.skipped, stats.num_skipped, stats.step) == (None, 6, 2)


def test_a_step_that_is_given_up_between_its_updates_says_that_it_changed_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_END_S", 0.0)
    model = tiny_model()
    trainer = LocalTrainer(model, CONFIG, total_steps=1)
    found: list[bool] = []

    def give_up(*_: object) -> None:
        found.append(trainer.give_up())

    trainer.optimizer.register_step_post_hook(give_up)
    with pytest.raises(RunError, match="was given up"):
        step(trainer, played(model))
    assert found == [False]
    assert trainer.step == 1
