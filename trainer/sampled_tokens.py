"""What the policy says of the tokens that were sampled, beside what the engine said of them.

Each rank knows it of its own rows; together it is what an update is judged by and what is reported.

Suffixes: N tokens of a share, S sampled tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from agentrl.trainer.shares import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """Those of a mini-batch, in the order of the batch: on every rank the same."""

    policy_S: NDArray[np.float64]
    """Its logprobs before the update; of what a correction rejected those before the step's
    first one."""
    behavior_S: NDArray[np.float64]
    """The engine's."""
    versions_S: NDArray[np.int32]
    used_S: NDArray[np.bool_]
    """False for what a correction rejected: it tells of the gap as well."""
    episode_S: NDArray[np.int64]
    segment_S: NDArray[np.int64]
    """Index among the segments of the episode."""
    row_S: NDArray[np.int64]
    token_S: NDArray[np.int64]
    """Index in the row."""

    @classmethod
    def of(
        cls,
        share: Share,
        policy_N: NDArray[np.float64],
        measured_N: NDArray[np.bool_],
        *,
        has_rejected: bool,
    ) -> "SampledTokens":
        """A rank's own: what it measured, and what was rejected of its rows."""
        batch, lengths_R = share.batch, np.diff(share.batch.offsets_R1)
        chosen_N, rejected_N, proximal_N = measured_N, batch.rejected_N, batch.proximal_N
        if has_rejected and rejected_N is not None and proximal_N is not None:
            chosen_N = measured_N | (rejected_N & np.repeat(share.own_R, lengths_R))
            policy_N = np.where(rejected_N, proximal_N, policy_N)
        row_S = np.repeat(np.arange(batch.num_rows), lengths_R)[chosen_N]
        return cls(
            policy_S=policy_N[chosen_N],
            behavior_S=batch.logprobs_N[chosen_N].astype(np.float64),
            versions_S=batch.versions_N[chosen_N],
            used_S=measured_N[chosen_N],
            episode_S=batch.episode_R[row_S].astype(np.int64),
            segment_S=share.segments_R[row_S],
            row_S=share.rows_R[row_S],
            token_S=np.flatnonzero(chosen_N) - batch.offsets_R1[row_S],
        )

    @classmethod
    def join(cls, parts: "Sequence[SampledTokens]") -> "SampledTokens":
        """Those of all ranks."""
        rows_S, tokens_S = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("row_S", "token_S")
        )
        order_S = np.lexsort((tokens_S, rows_S))
        return cls(
            **{
                each.name: np.concatenate([getattr(part, each.name) for part in parts])[order_S]
                for each in fields(cls)
            }
        )
