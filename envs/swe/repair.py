"""`Repair`: one task of `swe_sandbox`, from a record or from a public instance."""

import functools
import hashlib
import io
import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from agentrl.envs.swe.build.archive import unpacked
from agentrl.envs.swe.build.records import Package, RepairTask, mutated, read_records
from agentrl.envs.swe.grade import Grading, of_instance, of_task
from agentrl.envs.swe.instances import Instance, read_instances
from agentrl.envs.swe.patch import make_patch
from agentrl.envs.swe.report import file_of
from agentrl.envs.swe.worktree import WorkTree
from agentrl.envs.tasks import split_of
from agentrl.errors import ConfigError
from agentrl.types import Task

_NO_SOURCES: Final = frozenset({".git", "__pycache__", ".pytest_cache"})
_GIT_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """A task's repository, twice."""

    agent: WorkTree
    """Without the tests that decide."""
    whole: WorkTree


@dataclass(frozen=True, eq=False, kw_only=True)
class BuiltRepair:
    """A task of `agentrl tasks build`."""

    task: RepairTask
    package: Package
    image: str = ""

    @property
    def id(self) -> str:
        """The record's name."""
        return self.task.task

    @property
    def issue(self) -> str:
        """The record's text."""
        return self.task.issue

    @property
    def split(self) -> str:
        """By package."""
        return "heldout" if self.package.split == "test" else "train"

    @property
    def requires(self) -> tuple[str, ...]:
        """As the package's record says."""
        return self.package.requires

    def root(self) -> Path:
        """The unpacked archive, from the package index the first time.

        Raises:
            ConfigError: There is no such archive, or it has another hash.
        """
        package = self.package
        return unpacked(package.package, package.version, package.sha256)

    @functools.cached_property
    def texts(self) -> tuple[dict[str, str], dict[str, str]]:
        """The files with the bugs, as they are and as they should be."""
        return mutated(self.root(), self.task.mutations)

    def trees(self) -> Trees:
        """The archive's files with the bugs planted."""
        root, broken = self.root(), self.texts[0]
        tests = frozenset(self.package.tests)
        return Trees(
            agent=_read_work_tree(root, broken, tests),
            whole=_read_work_tree(root, broken, frozenset()),
        )

    def grading(self, root: str, tools: str) -> Grading:
        """Every test of the package."""
        return of_task(self.task, self.package, root=root, tools=tools)

    def patch(self) -> tuple[str, bool]:
        """Made from the record."""
        return make_patch(*self.texts), False


@dataclass(frozen=True, eq=False, kw_only=True)
class PublicRepair:
    """An instance of a public set: in its image, or in a folder of this machine."""

    instance: Instance
    folder: Path | None
    """A clone, or the plain files."""
    place: str
    """Where the image has the repository."""

    @property
    def id(self) -> str:
        """The instance's name."""
        return self.instance.id

    @property
    def issue(self) -> str:
        """The problem statement."""
        return self.instance.problem

    @property
    def split(self) -> str:
        """By repository and number, since such a file may hold one repository only."""
        return split_of("swe_sandbox", self.instance.id)

    @property
    def image(self) -> str:
        """None is needed for a folder; a Dockerfile's is named by what stands in it."""
        if self.folder:
            return ""
        digest = hashlib.blake2b(self.instance.dockerfile.encode(), digest_size=8).hexdigest()
        return self.instance.image or f"agentrl-instance:{digest}"

    @property
    def dockerfile(self) -> str:
        """What the image is built from; "" if it is there under its own name, or not needed."""
        return "" if self.folder or self.instance.image else self.instance.dockerfile

    @property
    def requires(self) -> tuple[str, ...]:
        """Images have what they need."""
        return ()

    def trees(self) -> Trees:
        """The repository; tests that decide and are in it are left out for the agent."""
        tests = (*self.instance.fail_to_pass, *self.instance.pass_to_pass)
        # With a test patch the new tests come later, and the old ones are the repository's own.
        named = (file_of(test) for test in tests if "::" in test)
        hidden = frozenset[str]() if self.instance.test_patch else frozenset(named)
        if self.folder is None:
            return self._make_trees_in_image(hidden)
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            _check_out_with_bug(self.folder, self.instance, root)
            agent = _read_work_tree(root, {}, hidden)
            return Trees(agent=agent, whole=_read_work_tree(root, {}, frozenset()))

    def _make_trees_in_image(self, hidden: Collection[str]) -> Trees:
        # One by one: the workspace itself belongs to somebody else, and keeps its mode and times.
        each = f"find {shlex.quote(self.place)} -mindepth 1 -maxdepth 1 ! -name .git"
        script, stdin = f"{each} -exec cp -a -t . -- {{}} +", b""
        if self.instance.patch_is_bug:
            script, stdin = (
                f"{script} && git apply --whitespace=nowarn -",
                self.instance.patch.encode(),
            )
        without = f"{script} && rm -f -- {shlex.join(hidden)}" if hidden else script
        return Trees(
            agent=WorkTree(script=without, stdin=stdin), whole=WorkTree(script=script, stdin=stdin)
        )

    def grading(self, root: str, tools: str) -> Grading:
        """The instance's tests."""
        return of_instance(self.instance, root=root, tools="" if self.image else tools)

    def patch(self) -> tuple[str, bool]:
        """As the file has it."""
        return self.instance.patch, self.instance.patch_is_bug


Repair: TypeAlias = BuiltRepair | PublicRepair


@functools.lru_cache(maxsize=32)
def trees_of(repair: Repair) -> Trees:
    """`repair.trees()`, kept for the episodes of a group."""
    return repair.trees()


Repairs: TypeAlias = tuple[Mapping[str, Repair], tuple[str, ...]]
"""The tasks of a file by id, and a sentence for each that was left out."""


def read_repairs(file: str, repos: str, place: str, skip_bad: bool) -> Repairs:
    """The tasks that a file holds now.

    Args:
        file: records of `agentrl tasks build`, or public instances as JSONL or Parquet.
        repos: a folder with a clone OWNER__NAME for each instance's repository.
        place: where images have the repository.
        skip_bad: leave out what cannot be read.

    Raises:
        ConfigError: The file cannot be read, or a line of it.
    """
    path = Path(file)
    if _is_file_of_built_tasks(path):
        packages, tasks, problems = read_records(path, skip_bad=skip_bad)
        built = (BuiltRepair(task=task, package=packages[task.package]) for task in tasks)
        return {repair.id: repair for repair in built}, problems
    instances, problems = read_instances(path, skip_bad=skip_bad)
    return {i.id: _make_public_repair(i, repos, place) for i in instances}, problems


def repair_of(task: Task) -> Repair:
    """What a task of `swe_sandbox` stands for: its data says where it was read from."""
    return known_repairs(**task.data)[0][task.id]


@functools.lru_cache(maxsize=8)
def known_repairs(file: str, repos: str, place: str, skip_bad: bool) -> Repairs:
    """What was read when the tasks were listed: episodes go on with it if the file changes."""
    return read_repairs(file, repos, place, skip_bad)


def _is_file_of_built_tasks(path: Path) -> bool:
    if path.suffix == ".parquet":
        return False
    try:
        with path.open("rb") as file:
            return file.readline().startswith(b'{"package"')
    except OSError as error:
        raise ConfigError(f"the tasks in {path} cannot be read: {error}") from error


def _make_public_repair(instance: Instance, repos: str, place: str) -> Repair:
    folder = Path(repos) / instance.repo.replace("/", "__") if repos else None
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{instance.id}: there is no folder {folder} of the repository")
    if folder is None and not instance.image and not instance.dockerfile:
        raise ConfigError(
            f"{instance.id} names no image; give the folder that holds the repositories, each as "
            "OWNER__NAME, by --env.repos"
        )
    return PublicRepair(instance=instance, folder=folder, place=place)


def _read_work_tree(root: Path, changed: Mapping[str, str], left_out: frozenset[str]) -> WorkTree:
    """A folder's files as a tree."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in _list_source_files(root):
            name = path.relative_to(root).as_posix()
            if name in left_out:
                continue
            info = tar.gettarinfo(str(path), name)
            info.uid = info.gid = 0
            if not info.isreg():
                tar.addfile(info)
                continue
            data = changed[name].encode() if name in changed else path.read_bytes()
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return WorkTree(script="tar -xf - --no-same-owner", stdin=buffer.getvalue())


def _list_source_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name not in _NO_SOURCES:
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from _list_source_files(path)


def _check_out_with_bug(folder: Path, instance: Instance, target: Path) -> None:
    """Fill an empty folder with an instance's repository, its bug included."""
    if (folder / ".git").exists():
        archive = ("archive", "--format=tar", instance.commit or "HEAD")
        data = _run_git(folder, *archive, failed=f"{folder} has no commit {instance.commit}")
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            tar.extractall(target, filter="data")
    else:
        shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True)
    if instance.patch_is_bug:
        failed = f"{instance.id}: its patch does not apply"
        _run_git(target, "apply", "-", stdin=instance.patch.encode(), failed=failed)


def _run_git(folder: Path, *arguments: str, failed: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        input=stdin,
        env={"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        timeout=_GIT_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["git failed"]
        raise ConfigError(f"{failed}: {said[-1]}")
    return done.stdout
