"""`swe_sandbox`: repair a real repository."""

import asyncio
import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from agentrl.config.anchor import PathText
from agentrl.envs.sandboxed import SandboxConfig, SandboxEnv
from agentrl.envs.swe.agents import RepairAgent, SearchAgent
from agentrl.envs.swe.build.archive import install_tools
from agentrl.envs.swe.build.records import TASKS
from agentrl.envs.swe.grade import Grading, grade
from agentrl.envs.swe.repair import (
    BuiltRepair,
    PublicRepair,
    Repair,
    known_repairs,
    repair_of,
    trees_of,
)
from agentrl.envs.swe.survey import guarded_grading, options_of, problem_of, survey
from agentrl.envs.swe.verdict import Verdict
from agentrl.envs.swe.worktree import NoPatch, fill, take_patch
from agentrl.envs.tasks import SPLITS, Stamp, stamp_of
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.sandboxes import SandboxOptions, run_sync
from agentrl.sandboxes.docker import engine
from agentrl.tools import tool
from agentrl.tools.sandboxed import (
    BashTool,
    EditorTool,
    PythonTool,
    ReadFileTool,
    SearchTools,
    WriteFileTool,
)
from agentrl.types import Agent, Score, Task

_log = logging.getLogger(__name__)


class SweSandbox(
    BashTool, PythonTool, EditorTool, ReadFileTool, WriteFileTool, SearchTools, SandboxEnv
):
    """Repair a repository by its issue: worth 1 if every test passes that should.

    What differs in the repository at the end is the patch, whatever was said. It alone goes into a
    sandbox as new, with our tests.
    """

    class Config(SandboxConfig):
        """Which tasks, and where their repositories are."""

        tasks: PathText = Field(
            default="",
            description="a file of `tasks build`, or of SWE-bench, SWE-Gym, SWE-smith or R2E "
            "instances (JSONL or Parquet); empty: those that come along",
        )
        skip_bad: bool = Field(default=False, description="leave out lines that cannot be read")
        guarded_only: bool = Field(
            default=False, description="leave out tasks that no decoys guard against cheats"
        )
        repos: str = Field(
            default="",
            description="a folder with a clone OWNER__NAME of each instance's repository; empty: "
            "the instances' images have them",
        )
        build_images: bool = Field(
            default=False, description="build the images of instances that come as a Dockerfile"
        )
        image_root: str = Field(default="/testbed", description="where images have the repository")

    config: Config  # pyright: ignore[reportIncompatibleVariableOverride]
    hook_timeout_s = 2400.0
    """More than `Grading.all_s` with all that a grading does beside: what the policy's code does is
    scored."""

    system = (
        "You repair a bug in the repository in the current folder. Find the cause, edit the "
        "source files, try your repair, then call submit. Tests that are not shown to you decide. "
        "Do not change tests or settings."
    )
    max_turns = 30
    warn_turns = 3
    _repair: Repair
    _guarded: Grading

    @classmethod
    def list_tasks(cls, config: Config) -> Mapping[str, tuple[Task, ...]]:
        """The tasks of the file; what they need is fetched before the first episode.

        Raises:
            ConfigError: A line cannot be read, an archive cannot be had, or an image is to be built
                and may not.
        """
        place: dict[str, Any] = {
            "file": config.tasks or str(TASKS),
            "repos": config.repos,
            "place": config.image_root,
            "skip_bad": config.skip_bad,
        }
        found = _fetch_tasks(stamp_of(Path(place["file"])), **place)
        _build_missing_docker_images(found, build=config.build_images)
        if config.skip_bad or config.guarded_only:
            # The tasks without those that the configuration leaves out, each with a warning.
            kept: list[Repair] = []
            for task in run_sync(survey(found, config.sandbox)):
                if task.problem and config.skip_bad:
                    _log.warning("left out: %s", task.problem)
                elif not task.guarded and config.guarded_only:
                    _log.warning("left out: %s has no decoys that guard it", task.repair.id)
                else:
                    kept.append(task.repair)
            found = kept
        _warn_of_tasks_without_decoys(found)
        tasks = {
            split: tuple(
                Task(id=repair.id, prompt=repair.issue, data=place)
                for repair in found
                if repair.split == split
            )
            for split in SPLITS
        }
        return {split: listed for split, listed in tasks.items() if listed}

    def sandbox_for(self, task: Task) -> SandboxOptions:
        """With pytest to read, or of the instance's own image."""
        return options_of(repair_of(task), self.config.sandbox)

    async def setup(self) -> None:
        """Put the repository into the sandbox.

        Raises:
            EnvironmentFault: The instance names tests that its runner does not collect.
        """
        await super().setup()
        self._repair = repair_of(self.task)
        if said := await problem_of(self.sandbox, self._repair):
            raise EnvironmentFault(f"{said}; --env.skip-bad leaves such ones out")
        self._guarded = await guarded_grading(self.sandbox, self._repair)
        trees = await asyncio.to_thread(trees_of, self._repair)
        await fill(self.sandbox, trees.agent, commit=True)

    @tool
    async def submit(self) -> str:
        """Hand in the repository as it is now, and finish."""
        return self.finish("submitted")

    async def score(self, answer: str) -> Score:
        """1 if every test that should pass does; the shares are parts of their own."""
        trees = trees_of(self._repair)
        try:
            patch = await take_patch(self.sandbox, trees.agent)
        except NoPatch as error:
            return Score(value=0.0, reason=str(error))
        if not patch:
            return Score(value=0.0, reason="nothing was changed")

        async def fresh() -> None:
            await self.sandbox.reset()
            await fill(self.sandbox, trees.whole, commit=False)

        grading = self._guarded
        return _make_score_from_verdict(
            await grade(self.sandbox, grading, patch, fresh),
            (len(grading.fail_to_pass), len(grading.pass_to_pass)),
        )

    @classmethod
    def expert(cls) -> Agent:
        """Makes the repair that the task was made from."""
        return RepairAgent()

    @classmethod
    def agents(cls) -> Mapping[str, Agent]:
        """One that knows nothing but the issue's words."""
        return {"scripted": SearchAgent()}


@functools.lru_cache(maxsize=8)
def _fetch_tasks(_: Stamp, file: str, repos: str, place: str, skip_bad: bool) -> Sequence[Repair]:
    """The tasks of a file, once all archives and test tools that they need are in the cache."""
    known_repairs.cache_clear()  # of the file as it was
    found, problems = known_repairs(file, repos, place, skip_bad)
    for problem in problems:
        _log.warning("left out: %s", problem)
    built = [repair for repair in found.values() if isinstance(repair, BuiltRepair)]
    for repair in {repair.package.package: repair for repair in built}.values():
        repair.root()
    for requires in {repair.requires for repair in found.values() if not repair.image}:
        install_tools(requires)
    return tuple(found.values())


def _build_missing_docker_images(repairs: Sequence[Repair], *, build: bool) -> None:
    for repair in repairs:
        if not isinstance(repair, PublicRepair) or not repair.dockerfile:
            continue
        if not build:
            raise ConfigError(
                f"{repair.id} comes as a Dockerfile; let its image be built by --env.build-images, "
                "or give the repositories by --env.repos"
            )
        if not engine().has_image(repair.image):
            _log.info("building the image of %s", repair.id)
            engine().build_image(repair.dockerfile, repair.image)


def _warn_of_tasks_without_decoys(found: Sequence[Repair]) -> None:
    records = [repair for repair in found if isinstance(repair, BuiltRepair)]
    bare = sum(not repair.task.deciding for repair in records)
    if bare:
        _log.warning(
            "%d of %d tasks have no decoys, so that a reward proves little; build them again, or "
            "leave them out by --env.guarded-only",
            bare,
            len(records),
        )


def _make_score_from_verdict(verdict: Verdict, counts: tuple[int, int]) -> Score:
    passed = (verdict.fail_to_pass, verdict.pass_to_pass)
    shares = [n / most if most else 1.0 for n, most in zip(passed, counts, strict=True)]
    return Score(
        value=float(verdict.resolved),
        parts={
            "fail_to_pass": shares[0],
            "pass_to_pass": shares[1],
            "cheats_caught": float(verdict.caught),
            "unguarded": float(not verdict.guarded),
        },
        reason=verdict.reason,
    )
