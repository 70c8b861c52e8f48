"""Where an environment's tasks come from: generated one by one, or a sequence, or a JSONL file."""

import functools
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.tools import user_code
from agentrl.types import Message, Task

TaskList: TypeAlias = str | Path | Sequence[Task | Mapping[str, Any]]
"""A JSONL file, or the tasks themselves; a mapping has the keys of a line of the file."""
Tasks: TypeAlias = TaskList | Mapping[str, TaskList]
"""One list is the split "train"; a mapping names the list of each split."""

MakeTask: TypeAlias = Callable[[np.random.Generator, str], Task]
Stamp: TypeAlias = tuple[int, ...] | None
_KEYS = ("prompt", "answer", "data", "id")
SPLITS = ("train", "heldout")
_HELDOUT_SHARE = 0.2


class TaskSource(Protocol):
    """Tasks by index: the same arguments give the same task, in every process."""

    def task(self, index: int, split: str, seed: int) -> Task:
        """The task at `index`."""
        ...

    def listed(self, split: str) -> Sequence[Task] | None:
        """All tasks of a split in the order of their list; None: no end."""
        ...


class GeneratedTasks:
    """Tasks of a `make_task(rng, split)`, seeded by (seed, split, index)."""

    def __init__(self, make_task: MakeTask):
        self._make_task = make_task

    def listed(self, split: str) -> None:
        """No end."""

    def task(self, index: int, split: str, seed: int) -> Task:
        """The task at `index`."""
        seeds = np.random.SeedSequence((seed, zlib.crc32(split.encode()), index))
        with user_code("make_task"):
            rng = np.random.Generator(np.random.PCG64(seeds))
            task = cast("object", self._make_task(rng, split))
        if not isinstance(task, Task):
            raise EnvironmentFault(f"make_task returned a {type(task).__name__}, expected a Task")
        return task


class ListedTasks:
    """Given tasks, in an order that (seed, pass over the list) shuffles."""

    def __init__(self, splits: Mapping[str, tuple[Task, ...]]):
        self._splits = splits

    def task(self, index: int, split: str, seed: int) -> Task:
        """The task at `index`: each pass over the list holds every task once."""
        tasks = self.listed(split)
        cycle, place = divmod(index, len(tasks))
        seeds = np.random.SeedSequence((seed, zlib.crc32(split.encode()), cycle))
        order = np.random.Generator(np.random.PCG64(seeds)).permutation(len(tasks))
        return tasks[int(order[place])]

    def listed(self, split: str) -> tuple[Task, ...]:
        """The split's list."""
        if split not in self._splits:
            raise ConfigError(
                f"there are no tasks for the split {split}, only for {', '.join(self._splits)}; "
                f'write tasks = {{"{split}": ...}}'
            )
        return self._splits[split]


def listed_tasks(tasks: Tasks, folder: Path) -> ListedTasks:
    """Read what a class declares as `tasks`; relative paths start at `folder`.

    Raises:
        ConfigError: A file is missing, a line is no task, a list is empty.
    """
    splits = tasks if isinstance(tasks, Mapping) else {"train": tasks}
    return ListedTasks(
        {split: _read_task_list_of_split(split, listed, folder) for split, listed in splits.items()}
    )


def declared_tasks(tasks: Tasks, folder: Path) -> Callable[[], ListedTasks]:
    """Gives what a class declares as `tasks`, read again when one of the files has changed.

    Raises:
        ConfigError: As `listed_tasks`, at once.
    """
    lists = tasks.values() if isinstance(tasks, Mapping) else [tasks]
    files = [folder / listed for listed in lists if isinstance(listed, str | Path)]

    @functools.lru_cache(maxsize=1)
    def read(_: tuple[Stamp, ...]) -> ListedTasks:
        return listed_tasks(tasks, folder)

    def current() -> ListedTasks:
        return read(tuple(map(stamp_of, files)))

    current()
    return current


def stamp_of(file: Path) -> Stamp:
    """What is another after each change of a file; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_task_list_of_split(split: str, tasks: TaskList, folder: Path) -> tuple[Task, ...]:
    if isinstance(tasks, str | Path):
        found = read_tasks(folder / tasks)
    else:
        found = tuple(_parse_task(item, f"task {i} of {split}") for i, item in enumerate(tasks))
    if not found:
        raise ConfigError(f"there are no tasks in the split {split}; give at least one")
    return found


def read_tasks(path: Path) -> tuple[Task, ...]:
    """The tasks of a JSONL file.

    Raises:
        ConfigError: It is missing, or a line is no task.
    """
    return tuple(_parse_task(item, where) for where, item in read_json_lines(path, "tasks"))


def read_json_lines(path: Path, what: str) -> Iterator[tuple[str, object]]:
    """What each line of a JSONL file holds, after its place in words; empty lines are left out.

    Raises:
        ConfigError: `what` is in the file cannot be read, or a line is no JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the {what} in {path} cannot be read: {error}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _parse_json_line(line, where)


def _parse_json_line(line: str, where: str) -> object:
    try:
        return json.loads(line, parse_constant=_refuse_nan, parse_float=_parse_finite_float)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON: {error}") from error


def _refuse_nan(text: str) -> float:
    raise ValueError(f"{text} is no number that JSON has")


def _parse_finite_float(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _refuse_nan(text)


def _parse_task(item: object, where: str) -> Task:
    if isinstance(item, Task):
        return item
    if not isinstance(item, Mapping):
        raise ConfigError(f"{where} is a {type(item).__name__}, expected an object with a prompt")
    fields = cast("Mapping[str, Any]", item)
    unknown = [key for key in fields if key not in _KEYS]
    if unknown or "prompt" not in fields:
        problem = f"has the unknown key {unknown[0]}" if unknown else "has no prompt"
        raise ConfigError(f"{where} {problem}; the keys are {', '.join(_KEYS)}")
    data: object = fields.get("data")
    if data is not None and not isinstance(data, Mapping):
        raise ConfigError(f"{where} has data of type {type(data).__name__}, expected an object")
    try:
        return Task(
            prompt=parse_text_or_messages(fields["prompt"], "prompt", where),
            answer=fields.get("answer"),
            data=cast("Mapping[str, Any]", data or {}),
            id=str(fields.get("id") or ""),
        )
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def parse_text_or_messages(said: object, key: str, where: str) -> str | tuple[Message, ...]:
    """Text, or messages in their usual JSON form.

    Raises:
        ConfigError: what stands under `key` is neither.
    """
    if isinstance(said, str):
        return said
    messages = cast("list[object]", said) if isinstance(said, list) else []
    found = tuple(m for item in messages if (m := _parse_message_or_none(item)) is not None)
    if not found or len(found) != len(messages):
        raise ConfigError(
            f'{where} has a {key} that is neither text nor a list of {{"role", "content"}} objects'
        )
    return found


def _parse_message_or_none(item: object) -> Message | None:
    if not isinstance(item, dict):
        return None
    fields = cast("dict[str, object]", item)
    role, content = fields.get("role"), fields.get("content")
    if role not in ("system", "developer", "user", "assistant") or not isinstance(content, str):
        return None
    if set(fields) != {"role", "content"}:
        return None
    return Message(role=role, content=content)


def split_of(*content: object) -> str:
    """The split that content belongs to, by its hash: splits share no task, whoever makes them."""
    digest = hashlib.blake2b(repr(content).encode(), digest_size=8).digest()
    share = int.from_bytes(digest) / 2**64
    return "heldout" if share < _HELDOUT_SHARE else "train"


def require_split(split: str) -> None:
    """A ConfigError for a split that does not exist."""
    if split not in SPLITS:
        raise ConfigError(f"there is no split {split}, expected {' or '.join(SPLITS)}")
