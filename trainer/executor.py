"""`RankTrainer`: a `Trainer` in several processes, used like one in this process.

    RankTrainer.update(batch) ─ deal ─▶ rank 0  LocalTrainer.update_share(its rows) ─┐
                                      ▶ rank 1  LocalTrainer.update_share(its rows) ─┴▶ rank 0's

Weights never come together in one process, except where someone asks for whole tensors; an engine
of this machine is written to by the ranks themselves.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import asyncio
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.engine import WeightSource
from agentrl.engine.local.models.load import limit_ids, load_model
from agentrl.engine.local.process import prepare_process
from agentrl.trainer.algorithms.losses import make_loss
from agentrl.trainer.fsdp import is_sharded, whole
from agentrl.trainer.parallel_dims import ParallelDims, Ranks
from agentrl.trainer.protocol import Trainer
from agentrl.trainer.rank_group import PRELOAD, start_ranks
from agentrl.trainer.roles import (
    CriticGroup,
    ReferenceRank,
    RoleApart,
    RoleGroup,
    RolePlace,
    RoleRank,
    TrainerPlan,
)
from agentrl.trainer.sharded_load import empty_model
from agentrl.trainer.shares import Dealer, Share, add_outputs
from agentrl.trainer.trainer import LocalTrainer
from agentrl.trainer.updates import StepStats, SupervisedStats, with_explained
from agentrl.trainer.weights import ModelWeights
from agentrl.types import Batch, Json
from agentrl.weights.plan import Bucket, Handle, Held, Layout, Written
from agentrl.workers.dispatch import by_replica, gathered, on_all, on_first, streamed
from agentrl.workers.executors import Executor, Processes
from agentrl.workers.group import WorkerGroup

P = ParamSpec("P")
T = TypeVar("T")

_GATHERED_BYTES = 1 << 26
"""Whole tensors come from the ranks in pieces of about this size."""


def _call_on_all_ranks(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate["RankTrainer", P], T]:
    """A method of `Trainer`, by calling every rank's."""

    def call(self: "RankTrainer", /, *args: P.args, **options: P.kwargs) -> T:
        return cast("T", self.call(method.__name__, *args, **options))

    call.__doc__ = method.__doc__
    return call


class RankTrainer:
    """Starts `config.ranks` workers, each with a `LocalTrainer` of the model."""

    def __init__(
        self,
        plan: TrainerPlan,
        executor: Executor | None = None,
        *,
        apart: Mapping[RoleApart, RolePlace] = MappingProxyType({}),
    ) -> None:
        """Start them and let them load the model; raises what a `LocalTrainer` does.

        Without an executor they are processes of this machine. Roles that lie `apart` have groups
        of their own.
        """
        self.has_changed = False
        plan = replace(plan, apart=frozenset(apart))
        config = plan.config
        layout = ParallelDims(
            size=config.ranks,
            replicate=config.replicate,
            sequence=config.sequence_parallel,
            timeout_s=config.rank_timeout_s,
        )
        self._ranks = start_ranks(
            executor or Processes(PRELOAD),
            layout,
            partial(Replica, plan),
            device=config.device,
            threads=plan.threads,
        )
        width, longest = self._ranks.ask(Replica.size_of_model)
        loss = plan.loss or make_loss(config)
        self._dealer = Dealer(config, layout, width=width, longest=longest, loss=loss)
        self._config = config
        self._layout = self._ranks.ask(Replica.held)
        self._is_near = set(self._ranks.ask(Replica.memory_place)) == {name_shared_memory()}
        self._num_bytes = 0
        self._critic: CriticGroup | None = None
        self._apart: dict[str, RoleGroup] = {}
        """By what they say of a batch."""
        try:
            if "critic" in apart:
                self._critic = CriticGroup(plan, apart["critic"])
                self._apart["values"] = self._critic
            if "reference" in apart:
                self._apart["reference"] = RoleGroup(ReferenceRank, plan, apart["reference"])
        except BaseException:
            self._end_groups()
            raise

    def call(self, method: str, *args: object, **options: object) -> object:
        """What the method of the first rank's trainer returns; the others call it too."""
        called = self._ranks.call_as(method.replace("_", " "), Replica.call, method, args, options)
        return self._ranks.wait(called)

    def update(self, batch: Batch) -> StepStats:
        """One policy update, as `Trainer.update`."""
        shares = self._dealer.for_update(batch)
        self.has_changed = True  # what interrupts it ends the ranks
        stats = self._ranks.ask(Replica.update, shares)[0]
        if self._critic is not None and batch.values_N is not None and stats.alarm is None:
            loss, skipped = self._critic.update(batch)
            stats = replace(stats, value_loss=loss, value_skipped=skipped)
        groups = [self._ranks, *(group.ranks for group in self._apart.values())]
        before, self._num_bytes = self._num_bytes, sum(group.num_bytes for group in groups)
        stats = replace(stats, sent_bytes=self._num_bytes - before)
        return with_explained(stats, batch, self._config)

    def supervised_update(self, batch: Batch, *, smoothing: float = 0.0) -> SupervisedStats:
        """One supervised update, as `Trainer.supervised_update`."""
        shares = self._dealer.for_supervised(batch)
        return self._ranks.ask(Replica.supervised_update, shares, [smoothing] * len(shares))[0]

    def with_outputs(self, batch: Batch, names: Collection[str]) -> Batch:
        """What models say of it, as `Trainer.with_outputs`."""
        # All are asked before any is waited for.
        asked = [self._apart[name].ask_outputs(batch) for name in names if name in self._apart]
        if own := [name for name in names if name not in self._apart]:
            shares = self._dealer.for_pass(batch)
            asked.append((shares, self._ranks.call(Replica.outputs, shares, [own] * len(shares))))
        for shares, future in asked:
            found = self._ranks.wait(future)
            batch = add_outputs(batch, shares, found)
        return batch

    def timeline(self) -> dict[str, tuple[float, float]]:
        """When the last pass of each role that lies apart began and ended, by its output."""
        return {name: group.ranks.ask(RoleRank.span) for name, group in self._apart.items()}

    def give_up(self) -> bool:
        """End the ranks if they are in a call; as `Trainer.give_up`."""
        self._ranks.interrupt()
        for group in self._apart.values():
            group.ranks.interrupt()
        return not self.has_changed

    @property
    def places(self) -> list[str]:
        """Which process each rank is, and where."""
        return self._ranks.places

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self._ranks.ask(Replica.step)

    logprobs = _call_on_all_ranks(Trainer.logprobs)

    def save(
        self,
        folder: Path,
        *,
        step: int,
        state: Mapping[str, Json],
        keep: int = 2,
        metric: float | None = None,
        background: bool = False,
    ) -> Path:
        """Write a checkpoint, as `Trainer.save`; a critic that lies apart writes its own before."""
        if self._critic is not None:
            self._critic.save(folder, step=step, keep=keep, metric=metric)
        options = {"keep": keep, "metric": metric, "background": background}
        return cast("Path", self.call("save", folder, step=step, state=state, **options))

    def load(self, path: Path) -> Mapping[str, Json]:
        """Load one, as `Trainer.load`."""
        if self._critic is not None:
            self._critic.load(path)
        return cast("Mapping[str, Json]", self.call("load", path))

    export = _call_on_all_ranks(Trainer.export)
    release_memory = _call_on_all_ranks(Trainer.release_memory)
    reclaim_memory = _call_on_all_ranks(Trainer.reclaim_memory)

    def weights(self) -> WeightSource:
        """The current weights: sliced over the ranks; adapters alone as whole tensors.

        Whole too where the ranks share no memory with this process.
        """
        if None in self._layout or not self._is_near:
            return GatheredWeights(self._ranks)
        return SlicedWeights(self._ranks, cast("Layout", self._layout))

    def close(self) -> None:
        """Bring the last checkpoint to the disk and end the processes."""
        try:
            if self._ranks.alive:
                self.call("close")
        finally:
            self._end_groups()

    def _end_groups(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._ranks)
            for group in self._apart.values():
                stack.enter_context(group.ranks)


@dataclass(frozen=True, slots=True)
class GatheredWeights:
    """A `WeightSource` whose tensors the ranks bring together, a few at a time."""

    _ranks: "WorkerGroup[Replica]"

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that the trainer publishes."""
        for part in self._ranks.stream(Replica.gather):
            yield from part


@dataclass(frozen=True, slots=True)
class SlicedWeights(GatheredWeights):
    """A `SlicedSource`: each rank writes its own part."""

    _layout: Layout

    def layout(self) -> Layout:
        """Which rank holds what."""
        return self._layout

    async def write(self, bucket: Bucket, memory: Handle, dtype: str) -> Sequence[Written]:
        """Let every rank write its moves into a bucket."""
        pickled = pickle.dumps(bucket)  # what pickles calls would look at each of its moves
        return await asyncio.wrap_future(
            self._ranks.call(Replica.write_slices, pickled, memory, dtype)
        )


def name_shared_memory() -> str:
    """Processes for which this is alike can share memory: one kernel, one view of its files."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/mnt').readlink()}"


class Replica:
    """What a rank's process holds: its trainer, and the weights that it is asked for."""

    def __init__(self, plan: TrainerPlan, ranks: Ranks) -> None:
        """Build the trainer of one rank."""
        config = plan.config
        prepare_process(
            threads=torch.get_num_threads(), deterministic=plan.deterministic, seed=plan.seed
        )
        # Adapters and a critic begin with weights that no file has.
        has_critic = config.has_critic and "critic" not in plan.apart
        plain = not config.lora.rank and not has_critic
        model = empty_model(plan.folder) if plain and is_sharded(config, ranks) else None
        folder = None if model is None else plan.folder
        if model is None:
            dtype = config.lora.dtype if config.lora.rank else "float32"
            model = load_model(plan.folder, dtype=dtype, device=str(ranks.device))
        if plan.num_ids is not None:
            limit_ids(model, plan.num_ids)
        reference = None
        if plan.reference is not None and "reference" not in plan.apart:
            place = str(ranks.device)
            reference = load_model(plan.reference, device=place, num_ids=plan.num_ids)
        self._trainer = LocalTrainer(
            model,
            config,
            total_steps=plan.total_steps,
            longest=plan.longest,
            reference=reference,
            ranks=ranks,
            folder=folder,
            loss=plan.loss,
            apart=plan.apart,
        )
        self.weights = self._trainer.weights()

    @by_replica
    def update(self, parts: Sequence[Share]) -> StepStats:
        """One policy update by this replica's share of each mini-batch."""
        return self._trainer.update_share(parts)

    @by_replica
    def supervised_update(self, share: Share, smoothing: float) -> SupervisedStats:
        """One supervised update by this replica's share."""
        return self._trainer.supervised_update_share(share, smoothing)

    @by_replica
    def outputs(self, share: Share, names: Collection[str]) -> dict[str, NDArray[np.float32]]:
        """What models say of the share's trained tokens."""
        return self._trainer.outputs_of_share(share, names)

    @on_first
    def size_of_model(self) -> tuple[int, int]:
        """Its hidden width, and most tokens of a row."""
        return int(self._trainer.model.config.hidden_size), self._trainer.longest

    @on_all
    def call(self, method: str, args: Sequence[Any], options: Mapping[str, Any]) -> object:
        """What the method of the trainer returns."""
        return getattr(self._trainer, method)(*args, **options)

    @on_first
    def step(self) -> int:
        """Optimizer steps taken."""
        return self._trainer.step

    @gathered
    def held(self) -> Mapping[str, Held] | None:
        """What this rank has of each parameter, if they are published in slices."""
        return self.weights.held() if isinstance(self.weights, ModelWeights) else None

    @gathered
    def memory_place(self) -> str:
        """Whose memory this rank can share."""
        return name_shared_memory()

    @gathered
    def write_slices(self, pickled: bytes, memory: Handle, dtype: str) -> Written:
        """Write this rank's moves into a bucket."""
        assert isinstance(self.weights, ModelWeights)
        return self.weights.write_own(pickle.loads(pickled), memory, dtype)

    @streamed
    def gather(self) -> Iterator[list[tuple[str, Tensor]]]:
        """All tensors, some at a time, which the ranks bring together."""
        found: list[tuple[str, Tensor]] = []
        size = 0
        for name, tensor in self.weights.named_tensors():
            full = whole(tensor)
            size += full.nbytes
            found.append((name, full.cpu()))
            if size >= _GATHERED_BYTES:
                yield found
                found, size = [], 0
        if found:
            yield found
