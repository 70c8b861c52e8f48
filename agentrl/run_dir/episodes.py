"""Episodes as Parquet: one file per step, written whole or not at all, read back exactly."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from agentrl.errors import ConfigError
from agentrl.run_dir.atomic import write_atomic, writing
from agentrl.run_dir.columns import (
    COLUMNS,
    FORMAT,
    FORMAT_KEY,
    SCHEMA,
    SEGMENT_ARRAYS,
    arrays_of,
    nested,
    read_fields,
    write_column,
)
from agentrl.types import (
    Episode,
    Invalid,
    Score,
    Segment,
    Task,
    TurnRecord,
)

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
