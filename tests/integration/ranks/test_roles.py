"""Critic and reference in groups of their own: the same run, and passes that overlap."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.engine.local.models.load import load_model
from agentrl.trainer import CriticConfig, KlConfig, RatioBandConfig, TrainerConfig
from agentrl.trainer.algorithms.recipe import make_recipe
from agentrl.trainer.executor import RankTrainer
from agentrl.trainer.protocol import Trainer
from agentrl.trainer.rank_group import PRELOAD
from agentrl.trainer.roles import RolePlace, TrainerPlan
from agentrl.trainer.trainer import LocalTrainer
from agentrl.trainer.updates import StepStats
from agentrl.types import Batch
from agentrl.workers.executors import Processes, WorkerCall, Workers
from tests.unit.trainer.batches import batch_of, random_segments

CONFIG = TrainerConfig(
    algorithm="ppo",
    lr=1e-3,
    executor="processes",
    kl=KlConfig(coef=0.1, kind="k2", where="reward"),
    critic=CriticConfig(lr=3e-3),
    ratio_band=RatioBandConfig(mean=1e9, max=1e9),
    token_budget=60,
)


@dataclass
class Meeting:
    """An executor whose passes are sent only once another group's is to be sent as well."""

    barrier: Barrier

    def start(self, size: int) -> "MeetingWorkers":
        return MeetingWorkers(self.barrier, Processes(PRELOAD).start(size))


@dataclass
class MeetingWorkers:
    barrier: Barrier
    workers: Workers

    def __len__(self) -> int:
        return len(self.workers)

    async def exchange(self, number: int, call: WorkerCall) -> Any:
        if "outputs" in [getattr(arg, "__name__", "") for arg in call.args]:
            self.barrier.wait()  # raises where the other is asked only after this one
        return await self.workers.exchange(number, call)

    def describe(self, number: int) -> str:
        return self.workers.describe(number)

    def close(self) -> None:
        self.workers.close()


def batch(seed: int) -> Batch:
    segments = random_segments((20, 7, 19, 3, 18, 33), seed)
    turns = [int(s.turns_T.max()) + 1 for s in segments]
    rewards = [(*[0.0] * (n - 1), float(i % 2)) for i, n in enumerate(turns)]
    return replace(batch_of(segments, turn_rewards=rewards), weights_N=None)


def train(trainer: Trainer, seeds: tuple[int, ...]) -> list[StepStats]:
    recipe = make_recipe(CONFIG)
    return [trainer.update(recipe.prepare(batch(seed), trainer)) for seed in seeds]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.weights().named_tensors()}


@contextmanager
def apart(folder: Path) -> Generator[RankTrainer]:
    barrier = Barrier(2, timeout=40)
    trainer = RankTrainer(
        TrainerPlan(folder=folder, config=CONFIG, total_steps=4, threads=1),
        apart={
            "critic": RolePlace(executor=Meeting(barrier)),
            "reference": RolePlace(executor=Meeting(barrier)),
        },
    )
    try:
        yield trainer
    finally:
        trainer.close()


def test_ppo_in_groups_of_their_own_is_the_colocated_run_also_after_a_restart(
    tiny_folder: Path, tmp_path: Path
) -> None:
    together = LocalTrainer(load_model(tiny_folder), CONFIG, total_steps=4)
    expected = train(together, (1, 2, 3))
    with apart(tiny_folder) as trainer:
        found = train(trainer, (1, 2))
        path = trainer.save(tmp_path, step=2, state={"mine": 1})
        train(trainer, (7,))
        assert trainer.load(path) == {"mine": 1}
        found += train(trainer, (3,))
        theirs = weights(trainer)
        print(trainer.timeline())
    assert (tmp_path / "critic" / path.name / "manifest.json").exists()
    for name, tensor in weights(together).items():
        torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=1e-6)
    for ours, other in zip(expected, found, strict=True):
        assert other.loss == pytest.approx(ours.loss, abs=1e-6)
        assert other.value_loss == pytest.approx(ours.value_loss, abs=1e-6)
        assert other.value_explained == pytest.approx(ours.value_explained, abs=1e-5)
        assert other.value_loss is not None
        assert ours.sent_bytes is None
        assert other.sent_bytes is not None
        assert 1_000 < other.sent_bytes < 1_000_000
    assert np.ptp([stats.value_loss for stats in found if stats.value_loss is not None]) > 0
