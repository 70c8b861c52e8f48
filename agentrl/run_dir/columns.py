"""The columns of an episode file: one row per episode, one list item per segment or turn.

Suffixes: S segments of an episode, T tokens of a segment, A appends of a segment.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

FORMAT = b"1"
FORMAT_KEY = b"agentrl.episodes"


def _lists(item: pa.DataType) -> pa.DataType:
    return pa.list_(item)


_CHANNEL = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("dtype", pa.string()),
        pa.field("shape", pa.list_(pa.int64())),
        pa.field("data", pa.binary()),
    ]
)

SEGMENT_ARRAYS: dict[str, pa.DataType] = {
    "ids": pa.int32(),
    "mask": pa.bool_(),
    "logprobs": pa.float32(),
    "sources": pa.int8(),
    "token_turns": pa.int16(),
    "versions": pa.int32(),
    "marks": pa.uint32(),
    "appends": pa.int32(),
}
"""Columns with one array per segment."""

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("run", pa.string()),
    ("step", pa.int64()),
    ("split", pa.string()),
    ("env", pa.string()),
    ("episode", pa.string()),
    ("task", pa.string()),
    ("group", pa.int64()),
    ("member", pa.int64()),
    ("attempt", pa.int64()),
    ("seed", pa.uint64()),
    ("stop", pa.string()),
    ("valid", pa.bool_()),
    ("return", pa.float64()),
    ("score", pa.float64()),
    ("score_parts", pa.string()),
    ("score_reason", pa.string()),
    ("invalid_reason", pa.string()),
    ("invalid_blame", pa.string()),
    ("invalid_retryable", pa.bool_()),
    ("num_turns", pa.int32()),
    ("num_tokens", pa.int64()),
    ("num_trained", pa.int64()),
    ("wall_s", pa.float64()),
    ("score_s", pa.float64()),
    ("messages", pa.string()),
    ("answer", pa.string()),
    ("task_prompt", pa.string()),
    ("task_answer", pa.string()),
    ("task_data", pa.string()),
    ("turn_rewards", _lists(pa.float64())),
    ("turn_parts", _lists(pa.string())),
    ("turn_state_keys", _lists(pa.string())),
    ("turn_sampled", _lists(pa.int32())),
    ("turn_calls", _lists(pa.int32())),
    ("turn_call_errors", _lists(_lists(pa.string()))),
    ("turn_cached", _lists(pa.int32())),
    ("turn_generate_s", _lists(pa.float64())),
    ("turn_environment_s", _lists(pa.float64())),
    *((name, _lists(_lists(kind))) for name, kind in SEGMENT_ARRAYS.items()),
    ("digests", _lists(pa.binary())),
    ("channels", _lists(_lists(_CHANNEL))),
]
SCHEMA = pa.schema(_COLUMNS, metadata={FORMAT_KEY: FORMAT})


def nested(rows: Sequence[Sequence[NDArray[np.generic]]], kind: pa.DataType) -> "pa.Array[Any]":
    """One column of arrays, by row and segment, without a Python object per token."""
    from_arrays: Any = getattr(pa.ListArray, "from_arrays")  # noqa: B009  # its stub is too narrow
    arrays = [array for row in rows for array in row]
    flat = np.concatenate(arrays) if arrays else np.zeros(0, kind.to_pandas_dtype())
    inner = from_arrays(_offsets(arrays), pa.array(flat, kind))
    column: pa.Array[Any] = from_arrays(_offsets(rows), inner)
    return column


def arrays_of(
    column: "pa.ChunkedArray[Any]", row: int, dtype: np.dtype[np.generic]
) -> list[NDArray[np.generic]]:
    """The arrays of one row of a `nested` column."""
    segments = column[row].values
    return [
        np.array(segments[i].values.to_numpy(zero_copy_only=False), dtype)
        for i in range(len(segments))
    ]


def _offsets(items: Sequence[Sequence[object] | NDArray[np.generic]]) -> "pa.Int32Array":
    return pa.array(np.cumsum([0, *(len(item) for item in items)]), pa.int32())
