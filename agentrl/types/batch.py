"""`Batch`: the only type on which the sampling side and the gradient side meet.

Suffixes: N tokens of all rows one after the other, R rows (segments), E episodes, A appends,
U turns of all episodes one after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The training sequences of one optimizer step, flat, with row offsets.

    Row r is `ids_N[offsets_R1[r]:offsets_R1[r + 1]]`. The mask is of *target* tokens: position t is
    trained iff `mask_N[t]`, with the logprob that the model gives token t from the tokens before it
    in its row.
    """

    ids_N: NDArray[np.int32]
    mask_N: NDArray[np.bool_]
    logprobs_N: NDArray[np.float32]
    """Behavior logprobs, zero where the mask is false."""
    sources_N: NDArray[np.int8]
    turns_N: NDArray[np.int16]
    versions_N: NDArray[np.int32]
    marks_N: NDArray[np.uint32]
    offsets_R1: NDArray[np.int64]
    """R + 1 row starts; the last is N."""
    episode_R: NDArray[np.int32]
    """Index of each row's episode in `episode_ids`."""
    digests_R: tuple[bytes, ...]
    appends_A: NDArray[np.int32]
    append_offsets_R1: NDArray[np.int64]
    """Row r has the appends `appends_A[append_offsets_R1[r]:append_offsets_R1[r + 1]]`."""
    episode_ids: tuple[str, ...]
    """E ids, for messages."""
    group_E: NDArray[np.int32]
    """The task group of each episode, numbered within the batch."""
    rewards_E: NDArray[np.float64]
    """The return of each episode: one value per trajectory, whatever its number of segments."""
    temperature: float
    """The one temperature of all behavior logprobs; the trainer applies it too."""
    channels: Mapping[str, NDArray[np.generic]] = field(
        default_factory=dict[str, NDArray[np.generic]]
    )
    turn_rewards_U: NDArray[np.float64] | None = None
    """The reward of each turn; those of an episode sum to its return."""
    turn_offsets_E1: NDArray[np.int64] | None = None
    """Episode e has the turns `turn_offsets_E1[e]` to `turn_offsets_E1[e + 1]`."""
    keys_U: tuple[str | None, ...] | None = None
    """The state that each turn began in, where the environment names it."""
    parts_E: Mapping[str, NDArray[np.float64]] = field(
        default_factory=dict[str, NDArray[np.float64]]
    )
    """Each part of the scores by its name, summed over an episode's turns; 0 where it has none."""
    greedy_E: NDArray[np.float64] | None = None
    """The reward of the greedy member of each episode's group, which is not in the batch; NaN where
    it could not be scored."""
    reference_N: NDArray[np.float32] | None = None
    """Logprobs of the reference, zero where the mask is false."""
    proximal_N: NDArray[np.float32] | None = None
    """The trainer's logprobs before the batch's first update, zero where the mask was false then:
    what a correction rejected has one."""
    values_N: NDArray[np.float32] | None = None
    """Set by a critic: the return expected from the state before each trained token."""
    advantages_N: NDArray[np.float32] | None = None
    """Set by an advantage estimator before the update; zero where the mask is false."""
    factors_N: NDArray[np.float32] | None = None
    """By what a correction multiplies the weights; None: by 1. Where it has, the old policy of the
    loss is the proximal one, not that of the engine."""
    rejected_N: NDArray[np.bool_] | None = None
    """What a correction took out of the mask that was recorded."""
    weights_N: NDArray[np.float32] | None = None
    """Set by a normalisation before the update: what each token counts in the step's loss, which is
    one sum, divided by nothing; zero where the mask is false."""

    @property
    def num_rows(self) -> int:
        """Training sequences."""
        return len(self.offsets_R1) - 1

    @property
    def num_tokens(self) -> int:
        """All tokens."""
        return len(self.ids_N)

    @property
    def num_trained(self) -> int:
        """Tokens with mask true."""
        return int(self.mask_N.sum())

    def row(self, r: int) -> slice:
        """The slice of row r in the flat arrays."""
        return slice(int(self.offsets_R1[r]), int(self.offsets_R1[r + 1]))
