"""Critic and reference in groups of ranks of their own, apart from the weights that are trained.

    RankTrainer ─▶ actor      Replica        proximal, update
                ─▶ critic     CriticRank     values, update
                ─▶ reference  ReferenceRank  reference

Each rank builds its role where it is. The passes of one batch are asked of all groups at once, so
that they overlap; a group does one call after the other.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from agentrl.engine.local.demands import context_length
from agentrl.engine.local.models.load import limit_ids, load_model
from agentrl.engine.local.process import prepare_process
from agentrl.trainer.algorithms.losses import CheckedLoss, make_loss
from agentrl.trainer.checkpoint import load_checkpoint, save_checkpoint
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.critic import Critic, CriticStats
from agentrl.trainer.device import memory_errors
from agentrl.trainer.first_update_check import GapGate
from agentrl.trainer.fsdp import prepare, settle
from agentrl.trainer.logprobs import policy_logprobs
from agentrl.trainer.micro_batches import pack_micros
from agentrl.trainer.model import check_reference
from agentrl.trainer.parallel_dims import ParallelDims, Ranks
from agentrl.trainer.rank_group import PRELOAD, start_ranks
from agentrl.trainer.shares import Dealer, Share
from agentrl.types import Batch
from agentrl.workers.dispatch import by_replica, on_all, on_first
from agentrl.workers.executors import Executor, Processes
from agentrl.workers.group import WorkerGroup

RoleApart = Literal["critic", "reference"]
Outputs = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPlan:
    """What each rank builds."""

    folder: Path
    """The model."""
    config: TrainerConfig
    total_steps: int
    longest: int | None = None
    """Most tokens of a row; None: the model's context."""
    threads: int = 0
    deterministic: bool = False
    seed: int = 0
    num_ids: int | None = None
    """Rows of the model's matrices from this one on are left out."""
    loss: CheckedLoss | None = None
    """Instead of the one that `config` names."""
    reference: Path | None = None
    """The model that is the reference, if it is not the one that is trained."""
    apart: frozenset[RoleApart] = frozenset()
    """Roles that other groups have."""

    def load(self, folder: Path, ranks: Ranks) -> PreTrainedModel:
        """A model with float32 weights in a process that is prepared for it."""
        prepare_process(
            threads=torch.get_num_threads(), deterministic=self.deterministic, seed=self.seed
        )
        model = load_model(folder, device=str(ranks.device))
        if self.num_ids is not None:
            limit_ids(model, self.num_ids)
        return model


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlace:
    """Where a role lies that is apart."""

    ranks: int = 1
    device: str = "cpu"
    executor: Executor | None = None
    """None: processes of this machine."""


class RoleRank(ABC):
    """What a rank of a role's group holds."""

    output: str
    """What it says of a batch, by the names of `Trainer.with_outputs`."""

    def __init__(self, model: PreTrainedModel, plan: TrainerPlan, ranks: Ranks) -> None:
        """Take the measures of the role's model."""
        self.width, self.longest = (
            int(model.config.hidden_size),
            context_length(model, plan.longest),
        )
        self.config, self.ranks, self._span = plan.config, ranks, (0.0, 0.0)

    @abstractmethod
    def compute(self, share: Share) -> NDArray[np.float32]:
        """[H, N] Its lines of the share's trained tokens, 0 elsewhere."""

    @by_replica
    def outputs(self, share: Share) -> Outputs:
        """[H, K] What it says of the share's trained tokens."""
        began = time.time()
        with memory_errors(self.config.token_budget), torch.no_grad():
            lines_HN = self.compute(share)
        self._span = began, time.time()
        return {self.output: lines_HN[:, share.batch.mask_N]}

    @on_first
    def measures(self) -> tuple[int, int]:
        """Hidden width, and most tokens of a row."""
        return self.width, self.longest

    @on_first
    def span(self) -> tuple[float, float]:
        """When the last pass began and ended, in seconds of the clock."""
        return self._span


class CriticRank(RoleRank):
    """The critic, with what a checkpoint of it is made of."""

    output = "values"

    def __init__(self, plan: TrainerPlan, ranks: Ranks) -> None:
        """Copy the policy's backbone, of which nothing else is kept."""
        policy = plan.load(plan.folder, ranks)
        super().__init__(policy, plan, ranks)
        self._critic = critic = Critic(policy, plan.config, ranks)
        # A checkpoint's `Saved`, with the critic in the place of the weights.
        self.model, self.optimizer, self.critic = critic.model, critic.optimizer, None
        self.adapter: dict[str, object] | None = {} if plan.config.lora.rank else None
        self.gate = GapGate(plan.config.ratio_band, plan.config.max_gap_alarms)
        self.step = self.attempted = self.num_skipped = 0
        self.saving: Future[None] | None = None

    def compute(self, share: Share) -> NDArray[np.float32]:
        """Its values."""
        return self._critic.values(share)

    @by_replica
    def update(self, parts: Sequence[Share]) -> list[CriticStats]:
        """Learn from this replica's share of each mini-batch, as often as the policy does."""
        with memory_errors(self.config.token_budget):
            return [self._critic.update(share) for share in [*parts] * self.config.epochs]

    @on_all
    def save(self, folder: Path, step: int, keep: int, metric: float | None) -> None:
        """Write its own checkpoint."""
        save_checkpoint(self, folder, step=step, state={}, keep=keep, metric=metric)

    @on_all
    def load(self, path: Path) -> None:
        """Go on from one."""
        load_checkpoint(self, path)

    def finish_saving(self) -> None:
        """Nothing is written in the background."""


class ReferenceRank(RoleRank):
    """A frozen model."""

    output = "reference"

    def __init__(self, plan: TrainerPlan, ranks: Ranks) -> None:
        """Load it and hold its pass against the model's own code."""
        self._model = plan.load(plan.reference or plan.folder, ranks)
        super().__init__(self._model, plan, ranks)
        check_reference(self._model, self.longest)
        prepare(self._model, plan.config, ranks)

    def compute(self, share: Share) -> NDArray[np.float32]:
        """Its logprobs."""
        found_N = np.zeros(share.batch.num_tokens, dtype=np.float32)
        for rows in pack_micros(share.batch, share.micros, self.ranks):
            logprobs_K = policy_logprobs(self._model, rows, share.batch.temperature)
            found_N[rows.source_K] = logprobs_K.cpu().numpy()
        settle(self._model)
        return found_N[None]


class RoleGroup:
    """The ranks of one role, and who deals them their rows."""

    def __init__(
        self, build: Callable[[TrainerPlan, Ranks], RoleRank], plan: TrainerPlan, place: RolePlace
    ) -> None:
        """Start them; each builds its part of the role."""
        layout = ParallelDims(size=place.ranks, timeout_s=plan.config.rank_timeout_s)
        alone = {"replicate": 1, "sequence_parallel": 1, "ranks": place.ranks}
        config = plan.config.model_copy(update={**alone, "device": place.device})
        self.ranks: WorkerGroup[RoleRank] = start_ranks(
            place.executor or Processes(PRELOAD),
            layout,
            partial(build, replace(plan, config=config)),
            device=place.device,
            threads=plan.threads,
        )
        width, longest = self.ranks.ask(RoleRank.measures)
        loss = plan.loss or make_loss(config)
        self.dealer = Dealer(config, layout, width=width, longest=longest, loss=loss, is_quiet=True)

    def ask_outputs(self, batch: Batch) -> "tuple[list[Share], Future[list[Outputs]]]":
        """Begin the role's pass over its rows of the batch."""
        shares = self.dealer.for_pass(batch)
        return shares, self.ranks.call(RoleRank.outputs, shares)


class CriticGroup(RoleGroup):
    """The critic apart, which also learns and is saved."""

    def __init__(self, plan: TrainerPlan, place: RolePlace) -> None:
        super().__init__(CriticRank, plan, place)
        self._critics = cast("WorkerGroup[CriticRank]", self.ranks)

    def update(self, batch: Batch) -> tuple[float, str | None]:
        """The mean loss of its updates by the batch, and why one of them was left out."""
        stats = self._critics.ask(CriticRank.update, self.dealer.for_update(batch))[0]
        skipped = next((each.skipped for each in stats if each.skipped is not None), None)
        return float(np.mean([each.loss for each in stats])), skipped

    def save(self, folder: Path, *, step: int, keep: int, metric: float | None) -> None:
        """Write `folder/critic/step-<step>`; one more stays, should the trainer's own fail."""
        self._critics.ask(CriticRank.save, folder / "critic", step, keep + 1, metric)

    def load(self, path: Path) -> None:
        """Load what belongs to the trainer's checkpoint `path`."""
        self._critics.ask(CriticRank.load, path.parent / "critic" / path.name)
