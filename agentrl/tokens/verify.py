"""Recomputes marks and digests where the loss is computed, and refuses what differs.

Suffixes: N tokens of all rows, R rows, A appends of all rows.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RecordMismatch
from agentrl.tokens.hash_chain import Fields, Packed, chain_digest, pack, token_marks
from agentrl.types import Batch, Segment, Source

_DTYPES = {
    "ids": np.dtype(np.int32),
    "mask": np.dtype(np.bool_),
    "logprobs": np.dtype(np.float32),
    "sources": np.dtype(np.int8),
    "turns": np.dtype(np.int16),
    "versions": np.dtype(np.int32),
}


def verify_batch(batch: Batch) -> int:
    """Recompute every row's record; returns the number of trained tokens that were verified.

    What a correction rejected was in the mask when it was recorded. Raises RecordMismatch naming
    the episode and the first token that differs.
    """
    names = [batch.episode_ids[int(e)] for e in batch.episode_R]
    rejected_N = batch.rejected_N
    fields = Fields(
        ids=batch.ids_N,
        mask=batch.mask_N if rejected_N is None else batch.mask_N | rejected_N,
        logprobs=batch.logprobs_N,
        sources=batch.sources_N,
        turns=batch.turns_N,
        versions=batch.versions_N,
        channels=batch.channels,
    )
    _verify_rows_and_count_trained(
        _Rows(
            fields,
            batch.marks_N,
            batch.offsets_R1,
            batch.appends_A,
            batch.append_offsets_R1,
            batch.digests_R,
            names,
        )
    )
    return batch.num_trained


def verify_segment(segment: Segment, episode_id: str) -> int:
    """The same for one segment."""
    fields = Fields(
        ids=segment.ids_T,
        mask=segment.mask_T,
        logprobs=segment.logprobs_T,
        sources=segment.sources_T,
        turns=segment.turns_T,
        versions=segment.versions_T,
        channels=segment.channels,
    )
    return _verify_rows_and_count_trained(
        _Rows(
            fields,
            segment.marks_T,
            np.array([0, segment.num_tokens]),
            segment.appends_A,
            np.array([0, len(segment.appends_A)]),
            (segment.digest,),
            [episode_id],
        )
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a batch and a segment have in common."""

    fields: Fields
    marks_N: NDArray[np.uint32]
    offsets_R1: NDArray[np.int64]
    appends_A: NDArray[np.int32]
    append_offsets_R1: NDArray[np.int64]
    digests_R: tuple[bytes, ...]
    names_R: list[str]

    def where(self, n: int) -> str:
        """Token n in words."""
        row = int(np.searchsorted(self.offsets_R1, n, side="right")) - 1
        position = n - int(self.offsets_R1[row])
        turn = int(self.fields.turns[n])
        return f"episode {self.names_R[row]}: token {position} (turn {turn})"


def _verify_rows_and_count_trained(rows: _Rows) -> int:
    _check_column_shapes_and_types(rows)
    packed = pack(rows.fields)
    differing = np.flatnonzero(token_marks(packed) != rows.marks_N)
    if len(differing):
        raise RecordMismatch(
            f"{rows.where(int(differing[0]))} is not what was recorded ({len(differing)} tokens "
            "differ); something changed ids, masks, logprobs, versions or side channels after the "
            "engine's answer"
        )
    _check_row_digests_unchanged(rows, packed)
    _check_order_of_sources_and_turns(rows)
    return int(rows.fields.mask.sum())


def _check_column_shapes_and_types(rows: _Rows) -> None:
    num = len(rows.fields.ids)
    columns = {name: getattr(rows.fields, name) for name in _DTYPES} | {"marks": rows.marks_N}
    for name, column in columns.items():
        dtype = _DTYPES.get(name, np.dtype(np.uint32))
        if column.shape != (num,) or column.dtype != dtype:
            raise RecordMismatch(
                f"{name} have shape {column.shape} and type {column.dtype}, expected ({num},) and "
                f"{dtype}; build batches from closed segments only"
            )
    for name, values in rows.fields.channels.items():
        if len(values) != num:
            raise RecordMismatch(
                f"side channel {name!r} has {len(values)} rows for {num} tokens; "
                "slice channels with their tokens"
            )
    _check_row_offsets("row", rows.offsets_R1, num, len(rows.names_R))
    _check_row_offsets("append", rows.append_offsets_R1, len(rows.appends_A), len(rows.names_R))
    if len(rows.digests_R) != len(rows.names_R):
        raise RecordMismatch(
            f"there are {len(rows.digests_R)} digests for {len(rows.names_R)} rows; "
            "each row carries the digest of its segment"
        )


def _check_row_offsets(what: str, offsets: NDArray[np.int64], total: int, num_rows: int) -> None:
    sound = len(offsets) == num_rows + 1 and offsets[0] == 0 and offsets[-1] == total
    if not sound or (np.diff(offsets) <= 0).any():
        raise RecordMismatch(
            f"{what} offsets do not cut {total} entries into {num_rows} non-empty rows; "
            "build batches from closed segments only"
        )


def _check_row_digests_unchanged(rows: _Rows, packed: Packed) -> None:
    appends = rows.appends_A.tolist()
    starts, cuts = rows.offsets_R1.tolist(), rows.append_offsets_R1.tolist()
    for row, (first, last) in enumerate(pairwise(cuts)):
        lengths = appends[first:last]
        num = starts[row + 1] - starts[row]
        if min(lengths) < 1 or sum(lengths) != num:
            raise RecordMismatch(
                f"episode {rows.names_R[row]}: the appends have {sum(lengths)} tokens, the row has "
                f"{num}; something changed the append lengths after the record was closed"
            )
        if chain_digest(packed, lengths, starts[row]) != rows.digests_R[row]:
            raise RecordMismatch(
                f"episode {rows.names_R[row]}: {_explain_bad_digest(rows, starts[row], lengths)}"
            )


def _explain_bad_digest(rows: _Rows, start: int, lengths: list[int]) -> str:
    """What can be said when every mark agrees and the digest does not."""
    for number, length in enumerate(lengths):
        sources = rows.fields.sources[start : start + length]
        turns = rows.fields.turns[start : start + length]
        if (sources != sources[0]).any() or (turns != turns[0]).any():
            return f"append {number} mixes tokens of two appends; the append lengths were changed"
        start += length
    return (
        "the digest of the hash chain differs although every token's mark agrees; "
        "the digest, the append lengths or tokens with their marks were changed"
    )


def _check_order_of_sources_and_turns(rows: _Rows) -> None:
    """What `TokenRecord` guarantees by construction, for records that were made elsewhere."""
    fields = rows.fields
    first_A = np.cumsum(rows.appends_A) - rows.appends_A
    source_A = fields.sources[first_A]
    begins_A = np.zeros(len(first_A), dtype=np.bool_)
    begins_A[rows.append_offsets_R1[:-1]] = True
    sampled_A = source_A == Source.MODEL

    again_A = np.zeros_like(begins_A)
    again_A[1:] = (source_A[1:] == source_A[:-1]) & sampled_A[1:] & ~begins_A[1:]
    after_prompt_A = np.zeros_like(begins_A)
    after_prompt_A[1:] = begins_A[:-1] & ~begins_A[1:] & ~sampled_A[1:]
    disorder_A = (begins_A != (source_A == Source.PROMPT)) | again_A | after_prompt_A
    _refuse_wrong_tokens(rows, np.repeat(disorder_A, rows.appends_A), "is out of order")

    first_R = fields.turns[rows.offsets_R1[:-1]].astype(np.int64)  # earlier segments had turns too
    turn_A = _number_turns(sampled_A, begins_A) + first_R[np.cumsum(begins_A) - 1]
    wrong_turn = (fields.turns < 0) | (fields.turns != np.repeat(turn_A, rows.appends_A))
    _refuse_wrong_tokens(rows, wrong_turn, "has the wrong turn")
    wrong_source = fields.sources != np.repeat(source_A, rows.appends_A)
    _refuse_wrong_tokens(rows, wrong_source, "is not of its append's source")

    sampled = fields.sources == Source.MODEL
    _refuse_wrong_tokens(
        rows, fields.mask & ~sampled, "is trained but the policy did not sample it"
    )
    _refuse_wrong_tokens(
        rows, (fields.logprobs != 0) & ~fields.mask, "has a logprob but is not trained"
    )
    _refuse_wrong_tokens(
        rows, (fields.versions >= 0) != sampled, "has a version that does not fit its source"
    )
    stop_A = np.where(sampled_A, first_A + rows.appends_A, 0)
    stop_R = np.maximum.reduceat(stop_A, rows.append_offsets_R1[:-1])
    after_N = np.arange(len(sampled)) >= np.repeat(stop_R, np.diff(rows.offsets_R1))
    for name, values in fields.channels.items():
        filled = np.reshape(values != np.zeros((), values.dtype), (len(values), -1)).any(axis=1)
        _refuse_wrong_tokens(
            rows, filled & after_N, f"has side channel {name!r} but nothing was sampled after"
        )


def _number_turns(sampled_A: NDArray[np.bool_], begins_A: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The turn of each append within its row: the completions before it, less one for answers."""
    count_A = np.cumsum(sampled_A)
    before_row_A: NDArray[np.int64] = (count_A - sampled_A)[np.flatnonzero(begins_A)][
        np.cumsum(begins_A) - 1
    ]
    turn_A: NDArray[np.int64] = np.maximum(count_A - before_row_A - 1, 0)
    return turn_A


def _refuse_wrong_tokens(rows: _Rows, wrong_N: NDArray[np.bool_], what: str) -> None:
    if wrong_N.any():
        raise RecordMismatch(
            f"{rows.where(int(np.flatnonzero(wrong_N)[0]))} {what}; "
            "make records with TokenRecord only"
        )
