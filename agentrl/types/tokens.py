"""Token-level values: what to sample, what was sampled, and one finished segment of a trajectory.

Suffixes: T tokens of a completion or segment, A appends of a segment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

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
