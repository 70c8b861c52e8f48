"""Repair tasks as records: they and the package's archive give the patch.

A file of records is JSONL. A line that begins with `package` describes an archive and its suite,
one that begins with `task` a task of a package of a line above.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from agentrl.config import Config
from agentrl.envs.swe.build.operators import OPERATORS
from agentrl.envs.swe.build.source import (
    Node,
    NotMutable,
    PackageSource,
    Position,
    SourceEdit,
    position,
)
from agentrl.envs.swe.decoys import Decoy
from agentrl.envs.swe.patch import make_patch
from agentrl.errors import ConfigError

TASKS: Final = Path(__file__).parents[1] / "tasks.jsonl"
"""The tasks that come with agentrl; `recipe.toml` made them."""
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Package(Config):
    """A source archive, and how its tests are run."""

    package: str
    version: str
    sha256: Sha256 = Field(description="of the archive")
    license: str = ""
    split: Literal["train", "test"] = "train"
    paths: tuple[str, ...] = Field(description="folders for the import path")
    arguments: tuple[str, ...] = Field(description="of pytest")
    requires: tuple[str, ...] = Field(default=(), description="what else the tests import")
    tests: Mapping[str, tuple[str, ...]] = Field(description="those that pass, by file")
    seconds: float = Field(description="processor time of the suite")
    as_they_are: tuple[str, ...] = Field(
        default=(), description="test files that are not rewritten, since their tests notice"
    )
    decoys: tuple[Decoy, ...] = Field(default=(), description="wrong expected values")

    def test_ids(self) -> Iterator[str]:
        """The ids of the tests that pass."""
        return (f"{file}::{name}" for file, names in self.tests.items() for name in names)


class Mutation(Config):
    """One planted bug: an operator's edit at a place of a file."""

    file: str
    sha256: Sha256 = Field(description="of the file without the bug")
    node: Position
    operator: str
    to: str = Field(description="which of the operator's edits of the node")


class RepairTask(Config):
    """A package with one or more bugs, and the issue that tells of them."""

    task: str = Field(description="the id")
    package: str
    mutations: tuple[Mutation, ...] = Field(min_length=1)
    issue: str
    fail_to_pass: tuple[str, ...] = Field(min_length=1)
    seconds: tuple[float, ...] = Field(description="processor time of each validating run")
    deciding: tuple[tuple[int, ...], ...] = Field(
        default=(), description="for each bug the decoys, by number, of tests that fail by it"
    )
    flaky: int = Field(default=0, description="tests whose outcome differed between the runs")

    def pass_to_pass(self, package: Package) -> tuple[str, ...]:
        """The tests that pass with and without the bug."""
        failing = frozenset(self.fail_to_pass)
        return tuple(test for test in package.test_ids() if test not in failing)


def find(source: PackageSource, mutation: Mutation) -> tuple[Node, SourceEdit]:
    """The node and the edit of a mutation.

    Raises:
        ConfigError: The file is another one, or has no such place.
    """
    where = f"{mutation.file}, line {mutation.node[0]}"
    if source.sha256 != mutation.sha256:
        raise ConfigError(
            f"{mutation.file} has the hash {source.sha256[:12]}, the record was made for "
            f"{mutation.sha256[:12]}; use the archive that the record names"
        )
    operator = OPERATORS.get(mutation.operator)
    if operator is None:
        raise ConfigError(f"{where}: there is no operator {mutation.operator}")
    for node in source.nodes():
        if position(node) == mutation.node:
            for edit in operator(source, node):
                if edit.to == mutation.to:
                    return node, edit
    raise ConfigError(f"{where}: {mutation.operator} finds nothing to turn into {mutation.to}")


def mutated(root: Path, mutations: Sequence[Mutation]) -> tuple[dict[str, str], dict[str, str]]:
    """The files of a task with its bugs and without them, by name.

    Raises:
        ConfigError: A file is missing or another one, or two bugs are in one place.
    """
    broken: dict[str, str] = {}
    whole: dict[str, str] = {}
    for file in sorted({mutation.file for mutation in mutations}):
        try:
            source = PackageSource((root / file).read_bytes())
            edits = [find(source, m)[1] for m in mutations if m.file == file]
            broken[file], whole[file] = source.replaced(*edits), source.text
        except (OSError, NotMutable) as error:
            raise ConfigError(f"the bug in {file} cannot be planted: {error}") from error
    return broken, whole


def reference_patch(root: Path, task: RepairTask) -> str:
    """The patch that repairs a task, from the unpacked archive."""
    return make_patch(*mutated(root, task.mutations))


def write_records(packages: Iterable[Package], tasks: Iterable[RepairTask]) -> str:
    """The text of a file of records."""
    rows = [*packages, *tasks]
    lines = (row.model_dump(mode="json", exclude_defaults=True) for row in rows)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def read_records(
    path: Path, *, skip_bad: bool = False
) -> tuple[dict[str, Package], list[RepairTask], tuple[str, ...]]:
    """The packages by name, the tasks, and a sentence for each line that was left out.

    Args:
        path: a file that `write_records` wrote.
        skip_bad: leave out what is no record, instead of raising.

    Raises:
        ConfigError: The file cannot be read, or a line is no record; names the line.
    """
    packages: dict[str, Package] = {}
    tasks: list[RepairTask] = []
    problems: list[str] = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the tasks in {path} cannot be read: {error}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            _parse_record_line(line, packages, tasks)
        except ValueError as error:
            problem = f"{path}, line {number} {_describe_record_error(error)}"
            if not skip_bad:
                raise ConfigError(f"{problem}; --env.skip-bad leaves such ones out") from error
            problems.append(problem)
    return packages, tasks, tuple(problems)


def _parse_record_line(line: str, packages: dict[str, Package], tasks: list[RepairTask]) -> None:
    if not line.startswith('{"task"'):
        package = Package.model_validate_json(line)
        packages[package.package] = package
        return
    task = RepairTask.model_validate_json(line)
    if task.package not in packages:
        raise ValueError(f"is of the package {task.package}, which has no line before it")
    tasks.append(task)


def _describe_record_error(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"is no record: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
