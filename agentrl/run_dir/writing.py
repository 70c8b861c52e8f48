"""How files of a run are written: whole or not at all, or as a stream of JSON lines.

A process that is killed leaves at most half a line at the end of a stream; opening the stream for
writing cuts it off and reading skips it. Whether there is room is asked before a run begins.
"""

import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self, SupportsFloat, cast

import orjson

from agentrl.errors import ConfigError, RunError
from agentrl.run_dir.values import safe_text


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, bring it to the disk, and rename it to `path`.

    A killed process leaves at most a file that begins with a dot and ends in `.tmp`. Raises
    RunError if the place cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            write(temporary)
            sync(temporary)
            temporary.replace(path)
        finally:
            with suppress(OSError):  # it says no more than what went wrong before
                temporary.unlink(missing_ok=True)
        sync(path.parent)


def write_text_atomic(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def sync(path: Path) -> None:
    """Bring a file or directory entry to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Raise what a disk refuses (no space, no permission) as a RunError in one sentence."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: BaseException) -> RunError:
    """The error of a place that could not be written."""
    reason = " ".join(str(error).split())[:200]
    cause: BaseException | None = error
    while cause is not None:  # libraries put words of their own over what the system said
        if isinstance(cause, OSError) and cause.errno:
            reason = os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return RunError(
        f"{path}: could not be written ({reason}); what was there before is intact, so free some "
        "space or make the place writable, and go on"
    )


_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE


class LineWriter:
    """Appends one JSON object per line; each line reaches the operating system at once.

    Args:
        path: the file, made if needed.
        fsync: also wait for the disk after each line.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self._fsync = fsync
        self._fd = self._open_file_and_cut_half_line()

    def append(self, record: Mapping[str, object]) -> None:
        """Write one object; NaN and infinity become null, which is all that JSON has for them.

        Text that no UTF-8 holds is written as escapes.
        """
        line = _dump_json_line(record)
        with writing(self.path):
            if (left := len(line) - os.write(self._fd, line)) > 0:
                os.write(
                    self._fd, line[-left:]
                )  # the disk says why, and the next opening tidies up
            if self._fsync:
                os.fsync(self._fd)

    def rewrite(self, records: list[dict[str, object]]) -> None:
        """Put other lines in place of all lines, atomically."""
        text = b"".join(_dump_json_line(record) for record in records)
        self.close()
        write_atomic(self.path, lambda temporary: temporary.write_bytes(text))
        self._fd = self._open_file_and_cut_half_line()

    def close(self) -> None:
        """Close the file; doing it twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open_file_and_cut_half_line(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with writing(self.path):
            fd = os.open(self.path, flags, 0o666)
            text = self.path.read_bytes()
            os.ftruncate(fd, text.rfind(b"\n") + 1)
        return fd


def _dump_json_line(record: Mapping[str, object]) -> bytes:
    try:
        return orjson.dumps(record, default=str, option=_OPTIONS)
    except orjson.JSONEncodeError:
        return orjson.dumps(_escape_surrogates(record), default=str, option=_OPTIONS)


def _escape_surrogates(value: object) -> object:
    """The value with all its text as UTF-8 can hold it."""
    match value:
        case str():
            return safe_text(value)
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {_escape_surrogates(key): _escape_surrogates(item) for key, item in items}
        case list() | tuple():
            return [_escape_surrogates(item) for item in cast("list[object]", value)]
        case _:
            return value


class MetricsWriter(LineWriter):
    """`metrics.jsonl`: one line per step."""

    def write(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Append the metrics of a step."""
        numbers = {n: x if isinstance(x, int) else float(x) for n, x in metrics.items()}
        self.append({"step": step, **numbers})

    def truncate_after(self, step: int) -> None:
        """Drop the lines of later steps: a resumed run writes them again."""
        lines = read_lines(self.path)
        kept = [line for line in lines if isinstance(s := line.get("step"), int) and s <= step]
        if len(kept) < len(lines):
            self.rewrite(kept)


class EventsWriter(LineWriter):
    """`events.jsonl`: what happened when; never rewritten, so that it tells of every restart."""

    def write(self, event: str, **details: object) -> None:
        """Append an event, with the time in UTC."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.append({"time": now, "event": event, **details})


def read_lines(path: Path) -> list[dict[str, object]]:
    """The objects of a stream; a half-written last line is left out.

    Raises:
        RunError: another line is no JSON object, or the file cannot be read.
    """
    try:
        text = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RunError(f"{path}: could not be read ({error.strerror})") from error
    records: list[dict[str, object]] = []
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise RunError(f"{path}: line {number} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise RunError(f"{path}: line {number} is not a JSON object")
        records.append(cast("dict[str, object]", record))
    return records


def check_disk(path: Path, need_bytes: int) -> None:
    """Refuse to start where the disk of `path` (which need not exist yet) is too full.

    Raises:
        ConfigError: fewer than `need_bytes` are free.
    """
    free = free_bytes(path)
    if free < need_bytes:
        raise ConfigError(
            f"{path}: got {_format_bytes(free)} of free disk space, expected at least "
            f"{_format_bytes(need_bytes)}; free some space or choose another place with --runs-dir"
        )


def free_bytes(path: Path) -> int:
    """The bytes that are free at a path or at its nearest parent that exists."""
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def _format_bytes(num_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.4g} TB"
