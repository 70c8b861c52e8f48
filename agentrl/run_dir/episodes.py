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
from agentrl.run_dir.columns import FORMAT, FORMAT_KEY, SCHEMA, SEGMENT_ARRAYS, arrays_of, nested
from agentrl.run_dir.values import (
    dump_messages,
    dump_value,
    load_messages,
    load_value,
    safe_text,
)
from agentrl.types import (
    Episode,
    EpisodeStop,
    Invalid,
    Outcome,
    Score,
    Segment,
    Task,
    TurnRecord,
)

Kind = Literal["train", "eval"]
_STEMS: Mapping[Kind, str] = {"train": "step", "eval": "eval"}
_FIELDS = {name: name for name in SEGMENT_ARRAYS} | {"token_turns": "turns"}


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
        write_atomic(path, lambda temporary: _write_table(table, temporary))
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
    columns: dict[str, Any] = {"run": [run] * len(episodes), "step": [step] * len(episodes)}
    rows = [
        {**_row(episode), **_outcome_columns(episode), **_turn_columns(episode)}
        for episode in episodes
    ]
    for name in SCHEMA.names:
        if name in SEGMENT_ARRAYS:
            columns[name] = nested(
                [[_array(s, name) for s in e.segments] for e in episodes], SEGMENT_ARRAYS[name]
            )
        elif name not in columns:
            columns[name] = [row[name] for row in rows]
    return pa.table(columns, SCHEMA)  # pyright: ignore[reportUnknownMemberType]  # its stub is partial


def _write_table(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd")  # pyright: ignore[reportUnknownMemberType]  # its stub is partial


def from_table(table: pa.Table) -> list[Episode]:
    """The episodes of a table."""
    segments = [_segments(table, row) for row in range(table.num_rows)]
    rows = table.drop_columns([*SEGMENT_ARRAYS, "digests", "channels"]).to_pylist()
    return [_episode(row, own) for row, own in zip(rows, segments, strict=True)]


def _row(episode: Episode) -> dict[str, object]:
    task = episode.task
    prompt = task.prompt if isinstance(task.prompt, str) else list(task.prompt)
    return {
        "split": safe_text(episode.split),
        "env": safe_text(episode.env),
        "episode": safe_text(episode.id),
        "task": safe_text(task.id),
        "group": episode.group,
        "member": episode.member,
        "attempt": episode.attempt,
        "seed": episode.seed,
        "stop": episode.stop.value,
        "num_turns": len(episode.turns),
        "num_tokens": sum(s.num_tokens for s in episode.segments),
        "num_trained": sum(s.num_trained for s in episode.segments),
        "wall_s": episode.wall_s,
        "score_s": episode.score_s,
        "messages": dump_messages(episode.messages),
        "answer": dump_value(episode.answer),
        "task_prompt": dump_value(prompt),
        "task_answer": dump_value(task.answer),
        "task_data": dump_value(task.data),
        "digests": [s.digest for s in episode.segments],
        "channels": [[_channel(n, a) for n, a in s.channels.items()] for s in episode.segments],
    }


def _outcome_columns(episode: Episode) -> dict[str, object]:
    outcome = episode.outcome
    score = outcome if isinstance(outcome, Score) else None
    invalid = outcome if isinstance(outcome, Invalid) else None
    return {
        "valid": episode.valid,
        "return": episode.reward if score else None,
        "score": score.value if score else None,
        "score_parts": dump_value(score.parts) if score else None,
        "score_reason": safe_text(score.reason) if score else None,
        "invalid_reason": safe_text(invalid.reason) if invalid else None,
        "invalid_blame": invalid.blame if invalid else None,
        "invalid_retryable": invalid.retryable if invalid else None,
    }


def _turn_columns(episode: Episode) -> dict[str, object]:
    turns = episode.turns
    return {
        "turn_rewards": [t.reward for t in turns],
        "turn_parts": [dump_value(t.parts) for t in turns],
        "turn_state_keys": [None if t.state_key is None else safe_text(t.state_key) for t in turns],
        "turn_sampled": [t.num_sampled for t in turns],
        "turn_calls": [t.num_calls for t in turns],
        "turn_call_errors": [[safe_text(e) for e in t.call_errors] for t in turns],
        "turn_cached": [t.cached_tokens for t in turns],
        "turn_generate_s": [t.generate_s for t in turns],
        "turn_environment_s": [t.environment_s for t in turns],
    }


def _array(segment: Segment, column: str) -> NDArray[np.generic]:
    field = _FIELDS[column]
    array: NDArray[np.generic] = getattr(segment, f"{field}_{'A' if field == 'appends' else 'T'}")
    return array


def _channel(name: str, array: NDArray[np.generic]) -> dict[str, object]:
    data = np.ascontiguousarray(array)
    return {
        "name": name,
        "dtype": data.dtype.str,
        "shape": list(array.shape),
        "data": data.tobytes(),
    }


def _segments(table: pa.Table, row: int) -> tuple[Segment, ...]:
    digests = table["digests"][row].as_py()
    channels = table["channels"][row].as_py()
    arrays = {
        name: arrays_of(table[name], row, np.dtype(kind.to_pandas_dtype()))
        for name, kind in SEGMENT_ARRAYS.items()
    }
    return tuple(_segment(arrays, i, channels[i], digests[i]) for i in range(len(digests)))


def _segment(
    arrays: Mapping[str, list[NDArray[Any]]],
    i: int,
    channels: Iterable[Mapping[str, Any]],
    digest: bytes,
) -> Segment:
    return Segment(
        ids_T=arrays["ids"][i],
        mask_T=arrays["mask"][i],
        logprobs_T=arrays["logprobs"][i],
        sources_T=arrays["sources"][i],
        turns_T=arrays["token_turns"][i],
        versions_T=arrays["versions"][i],
        channels={
            c["name"]: np.frombuffer(c["data"], np.dtype(c["dtype"])).reshape(c["shape"])
            for c in channels
        },
        appends_A=arrays["appends"][i],
        marks_T=arrays["marks"][i],
        digest=digest,
    )


def _episode(row: Mapping[str, Any], segments: tuple[Segment, ...]) -> Episode:
    prompt = load_value(row["task_prompt"])
    task = Task(
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        answer=load_value(row["task_answer"]),
        data=load_value(row["task_data"]),
        id=row["task"],
    )
    return Episode(
        id=row["episode"],
        env=row["env"],
        task=task,
        split=row["split"],
        group=row["group"],
        member=row["member"],
        attempt=row["attempt"],
        seed=row["seed"],
        segments=segments,
        messages=load_messages(row["messages"]),
        turns=tuple(_read_turn(row, i) for i in range(row["num_turns"])),
        stop=EpisodeStop(row["stop"]),
        outcome=_to_outcome(row),
        answer=load_value(row["answer"]),
        wall_s=row["wall_s"],
        score_s=row["score_s"],
    )


def _read_turn(row: Mapping[str, Any], i: int) -> TurnRecord:
    return TurnRecord(
        reward=row["turn_rewards"][i],
        parts=load_value(row["turn_parts"][i]),
        state_key=row["turn_state_keys"][i],
        num_sampled=row["turn_sampled"][i],
        num_calls=row["turn_calls"][i],
        call_errors=tuple(row["turn_call_errors"][i]),
        cached_tokens=row["turn_cached"][i],
        generate_s=row["turn_generate_s"][i],
        environment_s=row["turn_environment_s"][i],
    )


def _to_outcome(row: Mapping[str, Any]) -> Outcome:
    if row["valid"]:
        reason = row.get("score_reason") or ""  # older files have none
        return Score(value=row["score"], parts=load_value(row["score_parts"]), reason=reason)
    return Invalid(
        reason=row["invalid_reason"],
        blame=row["invalid_blame"],
        retryable=row["invalid_retryable"],
    )
