"""`Trainer`: the gradient side as a run sees it, in this process or over several ranks."""

from collections.abc import Mapping, Sequence
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

    def with_values(self, batch: Batch) -> Batch:
        """The batch with the critic's values; an estimator that needs them comes next.

        Raises ConfigError without a critic.
        """
        ...

    def with_reference(self, batch: Batch) -> Batch:
        """The batch with the reference's logprobs, for the KL penalty and whoever reads them.

        Raises ConfigError without a reference.
        """
        ...

    def with_proximal(self, batch: Batch) -> Batch:
        """The batch with the logprobs of the weights as they are, before any update by it."""
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
