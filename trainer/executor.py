"""`TrainerGroup`: one trainer in several processes, used like one `Trainer` in this one.

    TrainerGroup.update(batch) ─▶ rank 0  Trainer.update(batch) ─┐
                               ─▶ rank 1  Trainer.update(batch) ─┴─▶ the stats of rank 0, the same

Weights never come together in one process, except where someone asks for whole tensors; an engine
of this machine is written to by the ranks themselves.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# torch and transformers are typed in part only.

import asyncio
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from agentrl.engine import WeightSource
from agentrl.engine.local.models.load import load_model
from agentrl.engine.local.models.vocabulary import limit_ids
from agentrl.engine.local.process import prepare_process
from agentrl.engine.reshard import Bucket, Handle, Held, Layout, Written
from agentrl.trainer.config import TrainerConfig
from agentrl.trainer.fsdp import is_sharded, whole
from agentrl.trainer.parallel_dims import ParallelDims, Ranks
from agentrl.trainer.processes import RankProcesses
from agentrl.trainer.sharded_load import empty_model
from agentrl.trainer.stats import StepStats, SupervisedStats
from agentrl.trainer.trainer import Trainer
from agentrl.trainer.weights import ModelWeights
from agentrl.types import Batch, Json

_GATHERED_BYTES = 1 << 26
"""Whole tensors come from the ranks in pieces of about this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What each rank builds."""

    folder: Path
    config: TrainerConfig
    total_steps: int
    longest: int | None
    threads: int
    deterministic: bool
    seed: int
    num_ids: int | None


class TrainerGroup:
    """Starts `config.ranks` processes of this machine, each with a `Trainer` of the model."""

    def __init__(
        self,
        folder: Path,
        config: TrainerConfig,
        *,
        total_steps: int,
        longest: int | None = None,
        threads: int = 0,
        deterministic: bool = False,
        seed: int = 0,
        num_ids: int | None = None,
    ) -> None:
        """Start them and let them load the model of `folder`; raises what a `Trainer` does.

        Rows of its matrices from `num_ids` on are left out.
        """
        self.config = config
        self.total_steps = total_steps
        self.step = 0
        self.has_changed = False
        layout = ParallelDims(
            size=config.ranks,
            replicate=config.replicate,
            sequence=config.sequence_parallel,
            timeout_s=config.rank_timeout_s,
        )
        self._ranks = RankProcesses(layout, device=config.device, threads=threads)
        plan = _Plan(
            folder=folder,
            config=config,
            total_steps=total_steps,
            longest=longest,
            threads=threads,
            deterministic=deterministic,
            seed=seed,
            num_ids=num_ids,
        )
        try:
            self._layout = self._ranks.call(_build, plan)
        except BaseException:
            self._ranks.close()
            raise

    def update(self, batch: Batch) -> StepStats:
        """One policy update, as `Trainer.update`."""
        self.has_changed = True  # what interrupts it ends the ranks
        stats = cast(StepStats, self._invoke("update", batch))
        self.step = stats.step
        return stats

    def supervised_update(self, batch: Batch, *, smoothing: float = 0.0) -> SupervisedStats:
        """One cross-entropy update, as `Trainer.supervised_update`."""
        stats = cast(SupervisedStats, self._invoke("supervised_update", batch, smoothing=smoothing))
        self.step = stats.step
        return stats

    def with_values(self, batch: Batch) -> Batch:
        """The batch with the critic's values."""
        return cast(Batch, self._invoke("with_values", batch))

    def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """The logprob of each id but the first given those before it."""
        return cast(list[float], self._invoke("logprobs", list(ids), temperature))

    def weights(self) -> WeightSource:
        """The current weights: sliced over the ranks; adapters alone as whole tensors."""
        if None in self._layout:
            return GatheredWeights(self._ranks)
        return SlicedWeights(self._ranks, cast(Layout, self._layout))

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
        """A checkpoint, to which each rank writes its shards."""
        options = {"keep": keep, "metric": metric, "background": background}
        return cast(Path, self._invoke("save", folder, step=step, state=state, **options))

    def load(self, path: Path) -> Mapping[str, Json]:
        """The state of a checkpoint that any number of ranks wrote."""
        state = cast(Mapping[str, Json], self._invoke("load", path))
        self.step = self._ranks.call(_step)[0]
        return state

    def export(
        self, tokenizer_folder: Path, out: Path, *, adapter: bool = False, card: str = ""
    ) -> Path:
        """A Hugging Face folder, written by the first rank."""
        return cast(Path, self._invoke("export", tokenizer_folder, out, adapter=adapter, card=card))

    def release_memory(self) -> None:
        """As `Trainer.release_memory`."""
        self._invoke("release_memory")

    def reclaim_memory(self) -> None:
        """As `Trainer.reclaim_memory`."""
        self._invoke("reclaim_memory")

    def close(self) -> None:
        """Bring the last checkpoint to the disk and end the processes."""
        try:
            if self._ranks.alive:
                self._invoke("close")
        finally:
            self._ranks.close()

    def _invoke(self, method: str, *args: object, **options: object) -> object:
        return self._ranks.call_as(method, _invoke, method, args, options)[0]


@dataclass(frozen=True, slots=True)
class GatheredWeights:
    """A `WeightSource` whose tensors the ranks bring together, a few at a time."""

    _ranks: RankProcesses

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that the trainer publishes."""
        self._ranks.call(_begin_rank)
        while part := self._ranks.call(_gather)[0]:
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
        return await asyncio.to_thread(self._ranks.call, _write_slices, pickled, memory, dtype)


# What runs in the processes of the ranks.

_trainers: list[Trainer] = []
_sources: list[ModelWeights] = []
_gathering: list[Iterator[tuple[str, Tensor]]] = []


def _build(ranks: Ranks, plan: _Plan) -> Mapping[str, Held] | None:
    """What the rank holds, if its weights are published in slices."""
    config = plan.config
    prepare_process(
        threads=torch.get_num_threads(), deterministic=plan.deterministic, seed=plan.seed
    )
    # Adapters and a critic begin with weights that no file has.
    plain = not config.lora.rank and config.algorithm != "ppo"
    model = empty_model(plan.folder) if plain and is_sharded(config, ranks) else None
    folder = None if model is None else plan.folder
    if model is None:
        dtype = config.lora.dtype if config.lora.rank else "float32"
        model = load_model(plan.folder, dtype=dtype, device=str(ranks.device))
    if plan.num_ids is not None:
        limit_ids(model, plan.num_ids)
    trainer = Trainer(
        model,
        config,
        total_steps=plan.total_steps,
        longest=plan.longest,
        ranks=ranks,
        folder=folder,
    )
    _trainers.append(trainer)
    source = trainer.weights()
    if not isinstance(source, ModelWeights):
        return None
    _sources.append(source)
    return source.held()


def _invoke(ranks: Ranks, method: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    result = getattr(_trainers[0], method)(*args, **options)
    return result if ranks.rank == 0 else None


def _step(_: Ranks) -> int:
    return _trainers[0].step


def _write_slices(_: Ranks, pickled: bytes, memory: Handle, dtype: str) -> Written:
    return _sources[0].write_own(pickle.loads(pickled), memory, dtype)


def _begin_rank(_: Ranks) -> None:
    _gathering[:] = [iter(_trainers[0].weights().named_tensors())]


def _gather(ranks: Ranks) -> list[tuple[str, Tensor]]:
    """The next tensors, on the first rank; gathered by all of them."""
    found: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in _gathering[0]:
        full = whole(tensor)
        size += full.nbytes
        found.append((name, full.cpu()))
        if size >= _GATHERED_BYTES:
            break
    return found if ranks.rank == 0 else []
