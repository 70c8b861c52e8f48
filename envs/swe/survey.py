"""What a file of tasks is worth, before a run: bad ids, and what nothing guards.

Instances are asked about in sandboxes of their own, the first time; the answers are kept.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.envs.swe.build.archive import install_tools
from agentrl.envs.swe.build.guards import find_guard
from agentrl.envs.swe.grade import Grading
from agentrl.envs.swe.ids import find_bad_ids
from agentrl.envs.swe.repair import PublicRepair, Repair
from agentrl.errors import ConfigError
from agentrl.sandboxes import Sandbox, SandboxOptions, make_sandbox

TOOLS = "tools"
"""The mount with pytest and what else the tests import."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One task."""

    repair: Repair
    problem: str
    """Of the ids of its tests; "" if they can be collected."""
    guarded: bool


def options_of(repair: Repair, options: SandboxOptions) -> SandboxOptions:
    """A task's sandbox: with pytest, or of the instance's own image.

    Raises:
        ConfigError: The backend has no images.
    """
    if repair.image:
        if options.backend == "bwrap":
            raise ConfigError(
                f"{repair.id} needs the image {repair.image}, which bwrap has not; use the "
                "backend docker, or give the repositories by --env.repos"
            )
        return options.model_copy(update={"image": repair.image})
    mounts = {**options.mounts, TOOLS: install_tools(repair.requires)}
    path = f"/workspace/src:/workspace:/mnt/{TOOLS}"
    env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **options.env}
    return options.model_copy(update={"mounts": mounts, "env": env})


def plain_grading(sandbox: Sandbox, repair: Repair) -> Grading:
    """The grading without what has to be searched for."""
    return repair.grading(sandbox.workspace, sandbox.mounts.get(TOOLS, ""))


async def guarded_grading(sandbox: Sandbox, repair: Repair) -> Grading:
    """The grading with its decoys; those of an instance are searched for the first time."""
    grading = plain_grading(sandbox, repair)
    if not isinstance(repair, PublicRepair):
        return grading
    return (await find_guard(sandbox, repair, grading)).of(grading)


async def problem_of(sandbox: Sandbox, repair: Repair) -> str:
    """What is wrong with the ids of an instance's tests; those of records were made by a run."""
    if not isinstance(repair, PublicRepair):
        return ""
    bad = await find_bad_ids(sandbox, repair, plain_grading(sandbox, repair))
    more = f" and {len(bad) - 1} more" * (len(bad) > 1)
    return f"{repair.id}: its runner collects no test {bad[0]}{more}" if bad else ""


async def survey(repairs: Sequence[Repair], options: SandboxOptions) -> Sequence[Surveyed]:
    """Look at each task."""
    places = asyncio.Semaphore(os.cpu_count() or 1)

    async def look(repair: Repair) -> Surveyed:
        if not isinstance(repair, PublicRepair):
            return Surveyed(repair, "", repair.grading("", "").guarded)
        async with places, make_sandbox(options_of(repair, options)) as sandbox:
            problem = await problem_of(sandbox, repair)
            guarded = not problem and (await guarded_grading(sandbox, repair)).guarded
            return Surveyed(repair, problem, guarded)

    return await asyncio.gather(*map(look, repairs))
