"""Token-level values: what to sample, what was sampled, a finished segment, and a batch of them.

`Batch` is the only type on which the sampling side and the gradient side meet.

Suffixes: T tokens of a completion or segment, A appends of a segment; in a batch N tokens of all
rows one after the other, R rows (segments), E episodes, A appends, U turns of all episodes one
after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, StrEnum
from itertools import compress
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Channels = Mapping[str, NDArray[np.generic]]


class StopReason(StrEnum):
    """Why one completion ended."""

    STOP = "stop"
    """The policy sampled a stop token; it is the last id of the completion."""
    LENGTH = "length"
    """The token limit was reached: nothing in the completion may be executed."""
    ABORT = "abort"
    """The engine was told to stop; the ids so far are valid."""


class Source(IntEnum):
    """Where a token came from."""

    PROMPT = 0
    MODEL = 1
    ENVIRONMENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one completion. Training never truncates the distribution."""

    max_new_tokens: int
    temperature: float = 1.0
    """Zero means greedy and is for evaluation only."""
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0
    """The completion is a function of (weights, ids, sampling) where the engine honours seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer of an engine, sealed by the adapter that parsed it.

    `logprobs_T` are natural logs of the sampling distribution (after temperature).
    Make it with `agentrl.tokens.hash_chain`, which checks lengths and computes `digest`.
    """

    ids_T: NDArray[np.int32]
    logprobs_T: NDArray[np.float32]
    versions_T: NDArray[np.int32]
    """The policy version that each token was sampled under."""
    stop_reason: StopReason
    channels: Channels = field(default_factory=dict[str, NDArray[np.generic]])
    """Named side channels, each with T rows."""
    prompt_channels: Channels = field(default_factory=dict[str, NDArray[np.generic]])
    """The same for the tokens that it was sampled from, one row each, if the engine has them."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values the engine already had."""
    digest: bytes = b""
    sealed: bytes = b""
    """The arrays as they were, there to name the first token that was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A finished token record: one training sequence, with the digest of its hash chain.

    `appends_A` are the lengths of the appends in order; they and the arrays are all that is needed
    to recompute `digest`. `marks_T` is a fingerprint per token, there to name the first one that
    differs.
    """

    ids_T: NDArray[np.int32]
    mask_T: NDArray[np.bool_]
    """True exactly at tokens that the policy sampled and that are trained."""
    logprobs_T: NDArray[np.float32]
    """Behavior logprobs; zero where the mask is false."""
    sources_T: NDArray[np.int8]
    turns_T: NDArray[np.int16]
    """The turn that a token belongs to, counted over all segments of the episode; prompt tokens are
    of the segment's first turn."""
    versions_T: NDArray[np.int32]
    """Policy version; -1 where the policy did not sample."""
    channels: Channels
    appends_A: NDArray[np.int32]
    marks_T: NDArray[np.uint32]
    digest: bytes

    @property
    def num_tokens(self) -> int:
        """All tokens of the segment."""
        return len(self.ids_T)

    @property
    def num_trained(self) -> int:
        """Tokens with mask true."""
        return int(self.mask_T.sum())


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
    targets_N: NDArray[np.float32] | None = None
    """Set before a critic's update: the return that it is to expect, zero where the mask is
    false."""
    cost_targets_N: NDArray[np.float32] | None = None
    """The same for its second head."""
    advantages_N: NDArray[np.float32] | None = None
    """Set by an advantage estimator before the update; zero where the mask is false."""
    factors_N: NDArray[np.float32] | None = None
    """By what a correction multiplies the weights; None: by 1. Where it has, the old policy of the
    loss is the proximal one, not that of the engine."""
    rejected_N: NDArray[np.bool_] | None = None
    """What a correction took out of the mask that was recorded."""
    version: int | None = None
    """Of the weights that it is to update; None: that of its newest tokens."""
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
        chosen = {"E": chosen_E}
        if self.turn_offsets_E1 is not None:
            chosen["U"] = np.repeat(chosen_E, np.diff(self.turn_offsets_E1))
        taken = self._take(chosen_E[self.episode_R], chosen)
        renumbered_E = np.cumsum(chosen_E, dtype=np.int32) - 1
        return replace(taken, episode_R=renumbered_E[taken.episode_R])

    def take_rows(self, chosen_R: NDArray[np.bool_]) -> "Batch":
        """The batch of these rows alone, in order; it knows of all episodes what this one does."""
        return self if chosen_R.all() else self._take(chosen_R, {})

    def _take(
        self, chosen_R: NDArray[np.bool_], of_others: Mapping[str, NDArray[np.bool_]]
    ) -> "Batch":
        """These rows, and of other axes what is chosen of those that are named."""
        chosen = {
            "N": np.repeat(chosen_R, np.diff(self.offsets_R1)),
            "R": chosen_R,
            "A": np.repeat(chosen_R, np.diff(self.append_offsets_R1)),
            **of_others,
        }
        taken: dict[str, object] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            axis = {"channels": "N", "episode_ids": "E"}.get(each.name, each.name.split("_")[-1])
            if axis.endswith("1") and axis[0] in chosen and value is not None:
                lengths = np.diff(value)[chosen[axis[0]]]
                taken[each.name] = np.concatenate([[0], np.cumsum(lengths)])
            elif axis in chosen:
                taken[each.name] = _take_rows(value, chosen[axis])
        return self.with_fields(taken)

    def read_only(self) -> "Batch":
        """The same numbers, not copied, for a function that must not write into them."""
        locked = {each.name: _lock_arrays(getattr(self, each.name)) for each in fields(self)}
        return self.with_fields(locked)

    def with_fields(self, changed: Mapping[str, object]) -> "Batch":
        """The batch with other values of the fields that are named."""
        return replace(self, **changed)  # type: ignore[arg-type]  # each by its name

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
