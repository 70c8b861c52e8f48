"""Training of a reward model, from preference pairs to the folder that `reward_model:` loads.

pairs ─▶ ids ─┬─▶ trained: `passes` times, in another order each time ─▶ OUT
              └─▶ held out: accuracy and calibration
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from agentrl.engine.local.demands import context_length
from agentrl.engine.local.models.check import check_files
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.resolve import resolve_model
from agentrl.engine.local.process import prepare_process
from agentrl.orchestration.config import RewardTrainingConfig
from agentrl.orchestration.export import check_new_folder
from agentrl.orchestration.observers import Observer
from agentrl.orchestration.preferences import Preference, encode, split
from agentrl.rollout import derive_seed
from agentrl.run_dir.writing import writing
from agentrl.tokens import Renderer, Tokenizer
from agentrl.trainer.algorithms.preference import Calibration, calibration
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.device import resolve_device
from agentrl.trainer.model import refuse_dropout
from agentrl.trainer.reward_trainer import IdPair, RewardTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPlan:
    """A training that is checked, so far as no weights are loaded."""

    config: RewardTrainingConfig
    folder: Path
    """The model that it begins with."""
    train: Sequence[IdPair]
    heldout: Sequence[IdPair]
    out: Path

    @property
    def steps_of_pass(self) -> int:
        """Optimizer steps in which each pair is trained on once."""
        return -(-len(self.train) // self.config.batch)

    @property
    def steps(self) -> int:
        """All optimizer steps."""
        return self.config.passes * self.steps_of_pass

    def to_json(self) -> dict[str, object]:
        """What is going to be trained."""
        return {
            "model": self.folder,
            "out": self.out,
            "steps": self.steps,
            "train_pairs": len(self.train),
            "heldout_pairs": len(self.heldout),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """A reward model that is there."""

    plan: RewardPlan
    loss: float
    """Mean over the steps of the last pass, each before its update."""
    heldout: Calibration

    def to_json(self) -> dict[str, object]:
        """All numbers, for programs."""
        return self.plan.to_json() | {"loss": self.loss, "heldout": asdict(self.heldout)}


def plan_reward_training(
    config: RewardTrainingConfig, pairs: Sequence[Preference], out: Path
) -> RewardPlan:
    """Check the pairs with the model's tokenizer, and the model's files.

    Raises:
        ConfigError: something is wrong with them, or with the place of `out` or the device.
    """
    check_new_folder(out)
    resolve_device(config.device)
    folder = resolve_model(config.model, seed=config.seed)
    outline = check_files(folder)
    refuse_dropout(outline)
    ids = encode(pairs, Renderer(Tokenizer.load(folder)), context_length(outline))
    train, heldout = split(pairs, ids, share=config.heldout, seed=config.seed)
    return RewardPlan(config=config, folder=folder, train=train, heldout=heldout, out=out)


def train_reward_model(plan: RewardPlan, observer: Observer) -> RewardResult:
    """Train, measure what was held out, and write the folder.

    Raises:
        ConfigError: the model cannot be trained faithfully.
        RunError: a gradient was not finite, or the place cannot be written.
    """
    config = plan.config
    with writing(plan.out):  # nobody wants to learn that at the end
        plan.out.mkdir(parents=True, exist_ok=True)
    prepare_process(threads=config.threads, deterministic=config.deterministic, seed=config.seed)
    trainer = _load_reward_trainer(plan)
    losses: list[float] = []
    for number, batch in enumerate(_order_pairs_into_batches(plan), start=1):
        started = time.perf_counter()
        losses.append(trainer.update(batch))
        seconds = time.perf_counter() - started
        observer.step(number, {"loss": losses[-1], "step_s": seconds})
    found = calibration(trainer.margins(plan.heldout))
    trainer.export(plan.folder, plan.out)
    last = float(np.mean(losses[-plan.steps_of_pass :]))
    return RewardResult(plan=plan, loss=last, heldout=found)


def _load_reward_trainer(plan: RewardPlan) -> RewardTrainer:
    config, device = plan.config, resolve_device(plan.config.device)
    settings = TrainerConfig(
        lr=config.lr,
        warmup_steps=plan.steps // 10,
        schedule="linear",
        token_budget=config.token_budget,
        precision=config.precision,
        device=config.device,
    )
    model = load_model(plan.folder, device=str(device))
    return RewardTrainer(model, settings, total_steps=plan.steps, device=device)


def _order_pairs_into_batches(plan: RewardPlan) -> Iterator[list[IdPair]]:
    """The batches of all passes, nearly equal in number."""
    for number in range(plan.config.passes):
        rng = np.random.default_rng(derive_seed(plan.config.seed, "preferences", number))
        for part in np.array_split(rng.permutation(len(plan.train)), plan.steps_of_pass):
            yield [plan.train[i] for i in part.tolist()]
