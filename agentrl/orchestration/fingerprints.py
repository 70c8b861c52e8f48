"""Fingerprints of what a run is trained on, so that a resumed run notices that it has changed.

    data     each split that the run uses, task by task, and files that tasks and parameters name
    sources  the files in which environment and verifier are written: no run is refused for those

What counts is the content: a file that was renamed or moved is the same.
"""

import functools
import hashlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from agentrl.envs import ToolEnv
from agentrl.errors import ConfigError, EpisodeError
from agentrl.orchestration.env_mix import BoundEnv
from agentrl.orchestration.layers import Layers
from agentrl.orchestration.preflight import Plan
from agentrl.run_dir import RunDirectory
from agentrl.run_dir.values import dump_value
from agentrl.types import Task

ENDLESS_TASKS: Final = 4
"""So many tasks stand for all of a generator."""
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_PATH: Final = re.compile(r"[^\s\0]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprints:
    """Digests by what they are of, in words."""

    data: Mapping[str, str]
    sources: Mapping[str, str]


def take_fingerprints(plan: Plan) -> Fingerprints:
    """Those of all environments of a run."""
    data: dict[str, str] = {}
    sources: dict[str, str] = {}
    splits = {"train", plan.config.eval.split} if plan.config.eval.every else {"train"}
    for number, env in enumerate(plan.envs, start=1):
        # Not by the name that it is shown by, which goes by the working folder.
        who = f"env {env.env_class.__name__}" + (f" ({number})" if len(plan.envs) > 1 else "")
        for split in sorted(splits):
            digest = hashlib.blake2b(digest_size=12)
            for text in _dump_tasks_of_split(env, split, plan.config.seed):
                digest.update(_ADDRESS.sub("", text).encode() + b"\0")
            data[f"{who}: split {split}"] = digest.hexdigest()
        for key, value in env.config.model_dump(mode="json").items():
            if file := _find_file_named_by_value(value):
                data[f"{who}: the file of {key}"] = _digest_file_or_empty(file)
        for what, file in _list_source_files_of_env(env):
            sources[f"{what} of {who}"] = _digest_file_or_empty(file)
    return Fingerprints(data=data, sources=sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What has changed since the checkpoint that a resumed run begins with."""

    step: int = 0
    data: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def check(self, *, accepts: bool) -> None:
        """Raise ConfigError if the data have changed and that is not accepted."""
        if self.data and not accepts:
            raise ConfigError(
                f"{', '.join(self.data)}: not what the run was trained on until step {self.step}; "
                "put it back, or go on with what is there now by --accept-changes "
                "(in Python accept_changes=True)"
            )


def compare_fingerprints(directory: RunDirectory, now: Fingerprints) -> Compared:
    """What is other now than at the newest checkpoint, and was not accepted by a resume since."""
    state = newest_state(directory.checkpoints)
    if state is None:
        return Compared()
    step = int(state["step"])
    data = dict(state.get("data", {}))
    for layer in Layers.read(directory).layers:
        data |= layer.data if layer.step >= step else {}
    return Compared(
        step=step,
        data=tuple(_list_changed_fingerprints(data, now.data)),
        sources=tuple(_list_changed_fingerprints(state.get("sources", {}), now.sources)),
    )


def newest_state(checkpoints: Path) -> Mapping[str, Any] | None:
    """That of the newest checkpoint that has one; whether its files are whole is seen later."""
    for path in sorted(checkpoints.glob("step-*/state.json"), reverse=True):
        try:
            state: Mapping[str, Any] = orjson.loads(path.read_bytes())["state"]
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
            continue
        return state
    return None


def _list_changed_fingerprints(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    return (name for name, digest in now.items() if before.get(name, digest) != digest)


def _dump_tasks_of_split(env: BoundEnv, split: str, seed: int) -> Iterator[str]:
    listed = env.listed_tasks(split)
    if listed is not None:
        yield from map(_dump_task_as_text, listed)
        return
    for index in range(ENDLESS_TASKS):
        try:
            yield _dump_task_as_text(env.task(index, split, seed))
        except EpisodeError as error:  # a task that cannot be made is not made the next time
            yield type(error).__name__


def _dump_task_as_text(task: Task) -> str:
    data = {
        key: _digest_file_or_empty(file) if (file := _find_file_named_by_value(value)) else value
        for key, value in task.data.items()
    }
    return dump_value([task.id, task.prompt, task.answer, data])


def _find_file_named_by_value(value: object) -> Path | None:
    """The file that a value names, if it names one."""
    if not isinstance(value, str | Path) or not _PATH.fullmatch(str(value)):
        return None
    path = Path(value)
    return path if path.is_file() else None


def _list_source_files_of_env(env: BoundEnv) -> Iterator[tuple[str, Path]]:
    classes = env.env_class.__mro__
    for cls in classes[: classes.index(ToolEnv)]:
        if file := _find_source_file_of_object(cls):
            yield f"the class {cls.__name__}", file
    verifier = env.verifier or env.env_class.verifier
    if verifier is not None and (file := _find_source_file_of_object(verifier)):
        yield "the verifier", file


def _find_source_file_of_object(value: object) -> Path | None:
    """Where a class, a function or an object's class is written, if that is a file."""
    written = value if inspect.isclass(value) or inspect.isfunction(value) else type(value)
    try:
        return Path(inspect.getfile(written))
    except (TypeError, OSError):  # in a notebook, or in C
        return None


@functools.lru_cache(maxsize=256)
def _hash_file_once_per_change(path: Path, size: int, changed_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()


def _digest_file_or_empty(path: Path) -> str:
    """Read once, however many tasks name it; "" if it cannot be read."""
    try:
        found = path.stat()
        return _hash_file_once_per_change(path.absolute(), found.st_size, found.st_mtime_ns)
    except OSError:
        return ""
