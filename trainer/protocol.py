"""`Trainer`: the gradient side as a run sees it, in this process or over several ranks."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agentrl.engine import WeightSource
from agentrl.trainer.updates import StepStats, SupervisedStats
from agentrl.types import Batch, Json


class Trainer(Protocol):
    """Turns batches into weights; one call at a time, but for `give_up`."""

    has_changed: bool
    """Set before an update changes anything; who wants to know sets it to False before."""

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        ...

    def update(self, batch: Batch) -> StepStats:
        """One policy update of a batch with advantages and weights.

        The weights stay as they are, and `skipped` says why, if nothing in the batch can be trained
        or the gradient is not finite, or with an `alarm`: the gap to the engine is far outside what
        the run has had. Raises RecordMismatch if a record changed since it was sampled, RunError if
        the first update's ratios are outside the band or too many gradients in a row were not
        finite, OutOfMemory.
        """
        ...

    def give_up(self) -> bool:
        """End an update that runs in another thread before it changes anything; False if it has.

        A trainer that gave one up makes no more of them.
        """
        ...

    def supervised_update(self, batch: Batch, *, smoothing: float = 0.0) -> SupervisedStats:
        """One cross-entropy update on the same masks and weights; no ratio, no gate.

        `smoothing` is the share of each target that is spread evenly over the vocabulary.
        """
        ...

    def with_outputs(self, batch: Batch, names: Collection[str]) -> Batch:
        """The batch with what models say of its trained tokens, before any update by it.

        Args:
            batch: an estimator that needs what is added comes next.
            names: `values` are the critic's; `reference` are that model's logprobs, for the KL
                penalty and whoever reads them; `proximal` those of the weights as they are.

        Raises ConfigError for a model that the trainer does not have.
        """
        ...

    def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """The logprob of each id but the first given those before it, by the model's own pass."""
        ...

    def weights(self) -> WeightSource:
        """The current weights for `Engine.update_weights`."""
        ...

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
        """Write the checkpoint `folder/step-<step>`; see `save_checkpoint`."""
        ...

    def load(self, path: Path) -> Mapping[str, Json]:
        """Load a checkpoint that any number of ranks wrote; the `state` that it was saved with."""
        ...

    def export(
        self, tokenizer_folder: Path, out: Path, *, adapter: bool = False, card: str = ""
    ) -> Path:
        """Write a Hugging Face folder; see `export_hf`."""
        ...

    def release_memory(self) -> None:
        """Keep the optimizer's state in host memory until `reclaim_memory`, off an accelerator.

        Nothing moves on a CPU, nor over several ranks: there `trainer.offload` does it for good.
        """
        ...

    def reclaim_memory(self) -> None:
        """Undo `release_memory`; without one before it nothing happens."""
        ...

    def close(self) -> None:
        """Bring the last checkpoint to the disk, and end what was started."""
        ...
