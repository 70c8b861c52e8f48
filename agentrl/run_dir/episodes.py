"""Episodes as Parquet: one file per step, written whole or not at all, read back exactly.

One row per episode, one list item per segment or turn. Suffixes: S segments of an episode, T tokens
of a segment, A appends of a segment.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from agentrl.errors import ConfigError
from agentrl.run_dir.values import (
    dump_messages,
    dump_value,
    load_messages,
    load_value,
    safe_text,
)
from agentrl.run_dir.writing import write_atomic, writing
from agentrl.types import (
    Episode,
    EpisodeStop,
    Invalid,
    Score,
    Segment,
    Task,
    TurnRecord,
)

FORMAT = b"1"
FORMAT_KEY = b"agentrl.episodes"


def _dump_prompt(prompt: object) -> str:
    return dump_value(prompt if isinstance(prompt, str) else list(cast("Iterable[Any]", prompt)))


def _load_prompt(text: str) -> object:
    prompt = load_value(text)
    return prompt if isinstance(prompt, str) else tuple(prompt)


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


@dataclass(frozen=True, slots=True)
class Column:
    """What a column holds: a field of the episode, of its task, its outcome or each of its turns.

    Of what is derived, or summed over the segments, nothing is read back.
    """

    kind: pa.DataType
    of: Literal["episode", "task", "score", "invalid", "turn", "segments", "derived"]
    field: str
    write: Callable[[Any], object] = lambda value: value
    read: Callable[[Any], Any] = lambda value: value


COLUMNS: Mapping[str, Column] = {
    "split": Column(pa.string(), "episode", "split", safe_text),
    "env": Column(pa.string(), "episode", "env", safe_text),
    "episode": Column(pa.string(), "episode", "id", safe_text),
    "task": Column(pa.string(), "task", "id", safe_text),
    "group": Column(pa.int64(), "episode", "group"),
    "member": Column(pa.int64(), "episode", "member"),
    "attempt": Column(pa.int64(), "episode", "attempt"),
    "seed": Column(pa.uint64(), "episode", "seed"),
    "stop": Column(pa.string(), "episode", "stop", str, EpisodeStop),
    "valid": Column(pa.bool_(), "derived", "", lambda e: e.valid),
    "return": Column(pa.float64(), "derived", "", lambda e: e.reward if e.valid else None),
    "score": Column(pa.float64(), "score", "value"),
    "score_parts": Column(pa.string(), "score", "parts", dump_value, load_value),
    # Older files have none.
    "score_reason": Column(pa.string(), "score", "reason", safe_text, lambda text: text or ""),
    "invalid_reason": Column(pa.string(), "invalid", "reason", safe_text),
    "invalid_blame": Column(pa.string(), "invalid", "blame"),
    "invalid_retryable": Column(pa.bool_(), "invalid", "retryable"),
    # Older files have none.
    "dropped": Column(
        pa.string(), "episode", "dropped", lambda why: why or None, lambda text: text or ""
    ),
    "num_turns": Column(pa.int32(), "derived", "", lambda e: len(e.turns)),
    "num_tokens": Column(pa.int64(), "segments", "num_tokens", sum),
    "num_trained": Column(pa.int64(), "segments", "num_trained", sum),
    "wall_s": Column(pa.float64(), "episode", "wall_s"),
    "score_s": Column(pa.float64(), "episode", "score_s"),
    "messages": Column(pa.string(), "episode", "messages", dump_messages, load_messages),
    "answer": Column(pa.string(), "episode", "answer", dump_value, load_value),
    "task_prompt": Column(pa.string(), "task", "prompt", _dump_prompt, _load_prompt),
    "task_answer": Column(pa.string(), "task", "answer", dump_value, load_value),
    "task_data": Column(pa.string(), "task", "data", dump_value, load_value),
    "turn_rewards": Column(pa.float64(), "turn", "reward"),
    "turn_parts": Column(pa.string(), "turn", "parts", dump_value, load_value),
    "turn_state_keys": Column(
        pa.string(), "turn", "state_key", lambda key: None if key is None else safe_text(key)
    ),
    "turn_sampled": Column(pa.int32(), "turn", "num_sampled"),
    "turn_calls": Column(pa.int32(), "turn", "num_calls"),
    "turn_call_errors": Column(
        pa.list_(pa.string()), "turn", "call_errors", lambda e: [*map(safe_text, e)], tuple
    ),
    "turn_cached": Column(pa.int32(), "turn", "cached_tokens"),
    "turn_generate_s": Column(pa.float64(), "turn", "generate_s"),
    "turn_environment_s": Column(pa.float64(), "turn", "environment_s"),
}
_KINDS: Mapping[str, pa.DataType] = {
    "run": pa.string(),
    "step": pa.int64(),
    **{n: pa.list_(c.kind) if c.of == "turn" else c.kind for n, c in COLUMNS.items()},
    **{name: pa.list_(pa.list_(kind)) for name, kind in SEGMENT_ARRAYS.items()},
    "digests": pa.list_(pa.binary()),
    "channels": pa.list_(pa.list_(_CHANNEL)),
}
SCHEMA = pa.schema(_KINDS, metadata={FORMAT_KEY: FORMAT})


def write_column(column: Column, episode: Episode) -> object:
    """The value of a column for an episode; None where its outcome is of the other kind."""
    match column.of:
        case "derived":
            return column.write(episode)
        case "segments":
            return column.write([getattr(s, column.field) for s in episode.segments])
        case "turn":
            return [column.write(getattr(turn, column.field)) for turn in episode.turns]
        case "task":
            return column.write(getattr(episode.task, column.field))
        case "episode":
            return column.write(getattr(episode, column.field))
        case "score" | "invalid":
            is_other = episode.valid != (column.of == "score")
            return None if is_other else column.write(getattr(episode.outcome, column.field))


def read_fields(row: Mapping[str, Any], of: str, turn: int | None = None) -> dict[str, Any]:
    """The fields that a row has of its episode, task, outcome or one of its turns."""
    own = {name: column for name, column in COLUMNS.items() if column.of == of}
    values: dict[str, Any] = {name: row.get(name) for name in own}
    if turn is not None:
        values = {name: value[turn] for name, value in values.items()}
    return {column.field: column.read(values[name]) for name, column in own.items()}


def nested(rows: Sequence[Sequence[NDArray[np.generic]]], kind: pa.DataType) -> "pa.Array[Any]":
    """One column of arrays, by row and segment, without a Python object per token."""
    from_arrays: Any = getattr(pa.ListArray, "from_arrays")  # noqa: B009  # its stub is too narrow
    arrays = [array for row in rows for array in row]
    flat = np.concatenate(arrays) if arrays else np.zeros(0, kind.to_pandas_dtype())
    inner = from_arrays(_make_list_offsets(arrays), pa.array(flat, kind))
    column: pa.Array[Any] = from_arrays(_make_list_offsets(rows), inner)
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


def _make_list_offsets(items: Sequence[Sequence[object] | NDArray[np.generic]]) -> "pa.Int32Array":
    return pa.array(np.cumsum([0, *(len(item) for item in items)]), pa.int32())


Kind = Literal["train", "eval"]
_STEMS: Mapping[Kind, str] = {"train": "step", "eval": "eval"}
_ODD_FIELDS = {"token_turns": "turns_T", "appends": "appends_A"}
_FIELDS = {name: f"{name}_T" for name in SEGMENT_ARRAYS} | _ODD_FIELDS
"""Of a segment, by the columns that hold them."""


class EpisodesWriter:
    """Writes `episodes/step-000012.parquet` and `episodes/eval-000012.parquet`."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run = run
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, step: int, kind: Kind = "train") -> Path:
        """The file of a step."""
        return self.folder / f"{_STEMS[kind]}-{step:06}.parquet"

    def write(self, step: int, episodes: Sequence[Episode], kind: Kind = "train") -> Path:
        """Write a step's episodes; a file of that step that is already there is replaced."""
        path = self.path(step, kind)
        table = to_table(episodes, run=self.run, step=step)
        write_atomic(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))  # pyright: ignore[reportUnknownMemberType, reportUnknownLambdaType]  # its stub is partial
        return path

    def truncate_after(self, step: int) -> None:
        """Delete the files of later steps: a resumed run writes them again."""
        for path in self.folder.glob("*-[0-9]*.parquet"):
            if int(path.stem.rpartition("-")[2]) > step:
                with writing(path):
                    path.unlink()


def read_episodes(path: Path) -> list[Episode]:
    """The episodes of a file, or of all files of a folder in order of their names.

    Raises:
        ConfigError: it does not exist or is not an episode file.
    """
    if path.is_dir():
        return [
            episode for file in sorted(path.glob("*.parquet")) for episode in read_episodes(file)
        ]
    try:
        table = pq.read_table(path, partitioning=None)  # pyright: ignore[reportUnknownMemberType]  # its stub is partial
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: cannot be read as Parquet: {error}") from error
    if (table.schema.metadata or {}).get(FORMAT_KEY) != FORMAT:
        raise ConfigError(f"{path}: is not an episode file of format {FORMAT.decode()}")
    return from_table(table)


def to_table(episodes: Sequence[Episode], *, run: str, step: int) -> pa.Table:
    """Episodes as a table with the columns of `columns.SCHEMA`."""
    columns: dict[str, Any] = {
        "run": [run] * len(episodes),
        "step": [step] * len(episodes),
        "digests": [[s.digest for s in e.segments] for e in episodes],
        "channels": [
            [[_dump_channel_array(*item) for item in s.channels.items()] for s in e.segments]
            for e in episodes
        ],
    }
    for name, column in COLUMNS.items():
        columns[name] = [write_column(column, episode) for episode in episodes]
    for name, kind in SEGMENT_ARRAYS.items():
        arrays = [[getattr(s, _FIELDS[name]) for s in e.segments] for e in episodes]
        columns[name] = nested(arrays, kind)
    return pa.table(columns, SCHEMA)  # pyright: ignore[reportUnknownMemberType]  # its stub is partial


def from_table(table: pa.Table) -> list[Episode]:
    """The episodes of a table."""
    segments = [_read_segments_of_table_row(table, row) for row in range(table.num_rows)]
    rows = table.drop_columns([*SEGMENT_ARRAYS, "digests", "channels"]).to_pylist()
    return [_read_episode_of_table_row(row, own) for row, own in zip(rows, segments, strict=True)]


def _dump_channel_array(name: str, array: NDArray[np.generic]) -> dict[str, object]:
    data = np.ascontiguousarray(array)
    return {
        "name": name,
        "dtype": data.dtype.str,
        "shape": list(array.shape),
        "data": data.tobytes(),
    }


def _read_segments_of_table_row(table: pa.Table, row: int) -> tuple[Segment, ...]:
    digests = table["digests"][row].as_py()
    channels = table["channels"][row].as_py()
    arrays = {
        name: arrays_of(table[name], row, np.dtype(kind.to_pandas_dtype()))
        for name, kind in SEGMENT_ARRAYS.items()
    }
    return tuple(_read_segment(arrays, i, channels[i], digests[i]) for i in range(len(digests)))


def _read_segment(
    arrays: Mapping[str, list[NDArray[Any]]],
    i: int,
    channels: Iterable[Mapping[str, Any]],
    digest: bytes,
) -> Segment:
    fields: dict[str, Any] = {_FIELDS[name]: found[i] for name, found in arrays.items()}
    return Segment(
        **fields,
        channels={
            c["name"]: np.frombuffer(c["data"], np.dtype(c["dtype"])).reshape(c["shape"])
            for c in channels
        },
        digest=digest,
    )


def _read_episode_of_table_row(row: Mapping[str, Any], segments: tuple[Segment, ...]) -> Episode:
    outcome = Score(**read_fields(row, "score")) if row["valid"] else None
    return Episode(
        **read_fields(row, "episode"),
        task=Task(**read_fields(row, "task")),
        segments=segments,
        turns=tuple(TurnRecord(**read_fields(row, "turn", i)) for i in range(row["num_turns"])),
        outcome=outcome or Invalid(**read_fields(row, "invalid")),
    )
