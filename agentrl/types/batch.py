"""`Batch`: the only type on which the sampling side and the gradient side meet.

Suffixes: N tokens of all rows one after the other, R rows (segments), E episodes, A appends,
U turns of all episodes one after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import compress
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Rewards = TypeVar("Rewards", float, NDArray[np.float64])

_ROUNDING = 1e-12


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
    """The reward of each turn; those of an episode, and of its tokens, sum to its return."""
    turn_offsets_E1: NDArray[np.int64] | None = None
    """Episode e has the turns `turn_offsets_E1[e]` to `turn_offsets_E1[e + 1]`."""
    token_rewards_N: NDArray[np.float64] | None = None
    """Rewards of single tokens beside those of their turns, zero where the mask is false: returns
    contain them."""
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
    divergence_N: NDArray[np.float32] | None = None
    """KL(policy || reference) where each token was drawn, over the whole vocabulary."""
    kl_coef: float | None = None
    """The weight of the penalty to the reference in this step; None: the configured one."""
    costs_E: NDArray[np.float64] | None = None
    """What each episode has of that which is kept below a limit."""
    multiplier: float | None = None
    """What a unit of cost counts against one of reward."""
    values_N: NDArray[np.float32] | None = None
    """Set by a critic: the return expected from the state before each trained token."""
    cost_values_N: NDArray[np.float32] | None = None
    """Set by a critic with a second head: the cost expected there."""
    advantages_N: NDArray[np.float32] | None = None
    """Set by an advantage estimator before the update; zero where the mask is false."""
    factors_N: NDArray[np.float32] | None = None
    """By what a correction multiplies the weights; None: by 1. Where it has, the old policy of the
    loss is the proximal one, not that of the engine."""
    rejected_N: NDArray[np.bool_] | None = None
    """What a correction took out of the mask that was recorded."""
    minibatch_E: NDArray[np.int32] | None = None
    """Which of the step's mini-batches each episode is in; None: there is one."""
    weights_N: NDArray[np.float32] | None = None
    """Set by a normalisation before the update: what each token counts in the loss of its
    mini-batch, which is one sum, divided by nothing; zero where the mask is false."""

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

    def take_episodes(self, chosen_E: NDArray[np.bool_]) -> "Batch":
        """The batch of these episodes alone, in order, with all that is known of them."""
        chosen_R = chosen_E[self.episode_R]
        chosen = {
            "N": np.repeat(chosen_R, np.diff(self.offsets_R1)),
            "R": chosen_R,
            "A": np.repeat(chosen_R, np.diff(self.append_offsets_R1)),
            "E": chosen_E,
        }
        if self.turn_offsets_E1 is not None:
            chosen["U"] = np.repeat(chosen_E, np.diff(self.turn_offsets_E1))
        taken: dict[str, object] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            axis = {"channels": "N", "episode_ids": "E"}.get(each.name, each.name.split("_")[-1])
            if axis.endswith("1") and value is not None:
                lengths = np.diff(value)[chosen[axis[0]]]
                taken[each.name] = np.concatenate([[0], np.cumsum(lengths)])
            elif axis in chosen:
                taken[each.name] = _take_rows(value, chosen[axis])
        renumbered_E = np.cumsum(chosen_E, dtype=np.int32) - 1
        taken["episode_R"] = renumbered_E[self.episode_R[chosen_R]]
        return replace(self, **taken)  # type: ignore[arg-type]  # each by its name

    def read_only(self) -> "Batch":
        """The same numbers, not copied, for a function that must not write into them."""
        locked = {each.name: _lock_arrays(getattr(self, each.name)) for each in fields(self)}
        return replace(self, **locked)  # type: ignore[arg-type]  # each by its name

    def row(self, r: int) -> slice:
        """The slice of row r in the flat arrays."""
        return slice(int(self.offsets_R1[r]), int(self.offsets_R1[r + 1]))


def _take_rows(value: object, chosen: NDArray[np.bool_]) -> object:
    if isinstance(value, np.ndarray):
        return cast("NDArray[np.generic]", value)[chosen]
    if isinstance(value, Mapping):
        return {k: _take_rows(v, chosen) for k, v in cast("Mapping[str, object]", value).items()}
    return None if value is None else tuple(compress(cast("tuple[object, ...]", value), chosen))


def _lock_arrays(value: object) -> object:
    if isinstance(value, np.ndarray):
        view = cast("NDArray[np.generic]", value).view()
        view.flags.writeable = False
        return view
    if isinstance(value, Mapping):
        return {k: _lock_arrays(v) for k, v in cast("Mapping[str, object]", value).items()}
    return value


def are_equal(low: Rewards, high: Rewards) -> NDArray[np.bool_]:
    """True where a group's lowest and highest reward differ by rounding only, relative to size.

    One rule for what is trained on and for what is counted.
    """
    equal: NDArray[np.bool_] = high - low <= _ROUNDING * np.maximum(np.abs(low), np.abs(high))
    return equal
