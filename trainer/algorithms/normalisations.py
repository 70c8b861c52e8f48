"""Normalisations: what each trained token counts in the loss of a step.

The loss is the sum over all trained tokens of weight times term, divided by nothing. Weights are
made once for the whole batch, before it is split, so neither micro-batches nor ranks, padding or
packing change a scale. What has no trained token counts nowhere.

Suffixes: N tokens of the batch, R rows, E episodes, P parts of the batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from agentrl.config.seams import Seam
from agentrl.errors import RunError
from agentrl.trainer.algorithms.made_up import made_up_batch, trial
from agentrl.trainer.algorithms.needs import needs_of
from agentrl.trainer.algorithms.options import resolve_function
from agentrl.trainer.algorithms.token_arrays import call_on_batch, weights_fault
from agentrl.trainer.config import TrainerConfig
from agentrl.types import Batch

Normalisation = Callable[[Batch], NDArray[np.float32]]
"""Gives one weight per token, [N] float32, at least 0, and 0 where nothing is trained."""


def token_mean(batch: Batch) -> NDArray[np.float32]:
    """The mean over all trained tokens of the step, as DAPO's code has it (arXiv:2503.14476).

    w = 1 / n for n trained tokens. An episode counts by its length: of two with 1 and 3 tokens each
    token counts 1/4.
    """
    return _average_means_of_parts(batch, np.zeros(batch.num_rows, dtype=np.int64))


def sequence_mean(batch: Batch) -> NDArray[np.float32]:
    """The mean over rows of each row's mean, as in GRPO (arXiv:2402.03300, eq. 3).

    w = 1 / (R n_r) for the n_r trained tokens of one of R rows; a row is a segment of an episode.
    Each counts alike, so a token of a long one counts less: of two with 1 and 3 tokens they count
    1/2 and 1/6.
    """
    return _average_means_of_parts(batch, np.arange(batch.num_rows))


def sequence_sum(batch: Batch, *, length: int = 1024) -> NDArray[np.float32]:
    """The mean over rows of each row's sum over a constant (Dr. GRPO, arXiv:2503.20783, eq. 4).

    w = 1 / (R length). A token counts the same in short and in long rows, and whatever the length
    of the others is: of two with 1 and 3 tokens and a length of 10 each token counts 1/20.
    """
    scale_R = (_count_trained_tokens_by_row(batch) / length).astype(np.float32)
    return sequence_mean(batch) * np.repeat(scale_R, np.diff(batch.offsets_R1))


def group_mean(batch: Batch) -> NDArray[np.float32]:
    """The mean over groups of the mean over a group's tokens (DAPO, arXiv:2503.14476, eq. 8).

    w = 1 / (G n_g) for the n_g trained tokens of one of G groups: a task counts the same whether
    its answers are long or short. Groups of 2 and 6 tokens: their tokens count 1/4 and 1/12.
    """
    return _average_means_of_parts(batch, batch.group_E[batch.episode_R])


def episode_mean(batch: Batch) -> NDArray[np.float32]:
    """The mean over episodes of the mean over all segments of each (arXiv:2402.03300, eq. 3).

    w = 1 / (E n_e) for the n_e trained tokens of one of E episodes: `sequence_mean` where an
    episode is the sequence, however many segments it is in. One of 3 tokens in two segments and one
    of 1 token: their tokens count 1/6 and 1/2.
    """
    return _average_means_of_parts(batch, batch.episode_R)


BUILT_IN: Final[Mapping[str, Normalisation]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
    "group_mean": group_mean,
    "episode_mean": episode_mean,
}


def _average_means_of_parts(batch: Batch, part_R: NDArray[np.integer]) -> NDArray[np.float32]:
    """[N] The mean over parts of the batch, which rows belong to, of the mean of their tokens."""
    counts_R = _count_trained_tokens_by_row(batch)
    _, index_R = np.unique(part_R, return_inverse=True)
    counts_P = np.bincount(index_R, counts_R)
    scale_P = 1 / (np.maximum(counts_P, 1) * max(1, np.count_nonzero(counts_P)))
    weights_N = np.repeat(scale_P[index_R].astype(np.float32), np.diff(batch.offsets_R1))
    return np.where(batch.mask_N, weights_N, np.float32(0))


def _count_trained_tokens_by_row(batch: Batch) -> NDArray[np.int64]:
    before_N1 = np.concatenate([[0], np.cumsum(batch.mask_N)])
    return np.diff(before_N1[batch.offsets_R1])


@dataclass(frozen=True, slots=True)
class CheckedNormalisation:
    """A normalisation whose weights are checked each time; `label` names it in messages."""

    label: str
    weigh: Normalisation

    @property
    def needs(self) -> tuple[str, ...]:
        """What it declares."""
        return needs_of(self.weigh)

    def __call__(self, batch: Batch) -> NDArray[np.float32]:
        """[N] The weights; raises RunError if they are not what they have to be."""
        found = call_on_batch(self.label, self.weigh, batch)
        if fault := weights_fault(found, batch):
            raise RunError(f"{self.label} {fault}")
        return cast("NDArray[np.float32]", found)


def make_normalisation(config: TrainerConfig, given: object = None) -> CheckedNormalisation:
    """The configured normalisation, tried on a made-up batch; `given` is it where it is an object.

    Raises:
        ConfigError: there is none, or its weights are not what they have to be.
    """
    seam = Seam("normalisation", BUILT_IN, "agentrl.normalisations")
    label, function = resolve_function(seam, config.normalise, given, "batch")
    checked = CheckedNormalisation(label, cast("Normalisation", function))
    with trial():
        if not checked(made_up_batch(checked.needs)).any():
            raise RunError(f"{label} gave weights whose sum over the trained tokens is 0")
    return checked
