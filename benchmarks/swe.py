"""What an episode of `swe_sandbox` costs beside pytest, by part.

    python benchmarks/swe.py [--backend bwrap] [--episodes 12]

The oracle plays, one episode after the other, then several at once. pytest itself is the same suite
in a plain process. Medians of wall and processor time; run it on a quiet machine. Then grading with
decoys is held against one run without, by processor time: of a patch that repairs nothing, and of
the repair. The process ends with 1 if a bar is missed.
"""

import argparse
import asyncio
import contextlib
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from agentrl.envs import default_services, swe_sandbox
from agentrl.envs.swe.build.archive import install_tools
from agentrl.envs.swe.grade import Grading, grade
from agentrl.envs.swe.patch import make_patch
from agentrl.envs.swe.repair import BuiltRepair, repair_of, trees_of
from agentrl.envs.swe.survey import guarded_grading, options_of
from agentrl.envs.swe.worktree import fill, take_patch
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.envs.tasks import SPLITS
from agentrl.sandboxes import SandboxOptions, make_sandbox
from agentrl.sandboxes.leftovers import find_sandboxes
from agentrl.types import Score

P = ParamSpec("P")
T = TypeVar("T")
OVERHEAD_CPU_S, WARM_START_S = 2.0, 0.3
MOST_FOR_NOTHING, MEDIAN_FOR_ONE, MOST_FOR_ONE = 1.5, 3.0, 5.0
AT_ONCE = 4
_SET_CHILD_SUBREAPER = 36
PARTS = ("start", "tools", "patch", "grading sandbox", "grading, with pytest")


def adopt() -> None:
    """Become the parent of processes whose own is gone: bwrap does not wait for what it starts."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_s() -> float:
    """Processor time of this process and of all below it that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(t.ru_utime + t.ru_stime for t in times)


class Parts:
    """Wall and processor seconds of each part of each episode."""

    def __init__(self, measure: Callable[[], float] = cpu_s) -> None:
        self.spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._measure = measure

    async def of(self, part: str, work: Awaitable[T]) -> T:
        """Do a part."""
        wall, cpu = time.perf_counter(), self._measure()
        result = await work
        self.spent[part].append((time.perf_counter() - wall, self._measure() - cpu))
        return result

    def timed(self, part: str, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """The function as a part."""
        return lambda *args, **kwargs: self.of(part, function(*args, **kwargs))

    def median(self, part: str) -> tuple[float, float]:
        """Wall and processor seconds."""
        walls, cpus = zip(*self.spent[part], strict=True)
        return statistics.median(walls), statistics.median(cpus)


async def play(config: SweSandbox.Config, index: int, parts: Parts) -> SweSandbox:
    """One episode of the oracle, which must be right."""
    env, agent = SweSandbox(config), SweSandbox.expert()
    task = SweSandbox.task_at(index, split="heldout", seed=0, config=config)
    trees_of(repair_of(task))  # as for the second episode of a group
    await parts.of("start", env.areset(options={"task": task}))

    async def turns() -> None:
        stop = None
        while stop is None:
            stop = (await env.advance(agent.act(env.view()))).stop

    agent.act(env.view())
    await parts.of("tools", turns())
    outcome = await parts.of("score", env.ascore())
    assert isinstance(outcome, Score), outcome
    assert outcome.value == 1, outcome.reason
    await env.aclose()
    return env


def plain_pytest(repair: BuiltRepair) -> float:
    """Processor seconds of the package's suite in a plain process."""
    root, before = repair.root(), cpu_s()
    paths = [
        str(install_tools(repair.requires)),
        *(str(root / path) for path in repair.package.paths),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        command = ["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        subprocess.run(
            [*command, "-o", "addopts=", f"--basetemp={scratch}/t", *repair.package.arguments],
            cwd=root,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths),
                 "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0",
                 "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return cpu_s() - before


async def ratios(config: SweSandbox.Config, index: int) -> tuple[float, float]:
    """What grading costs of a patch that repairs nothing and of the repair, in plain runs."""
    task = SweSandbox.task_at(index, split=SPLITS[index % 2], seed=0, config=config)
    repair = repair_of(task)
    assert isinstance(repair, BuiltRepair)
    trees, (broken, _) = trees_of(repair), repair.texts
    nothing = make_patch(broken, {file: f"{text}\n#\n" for file, text in broken.items()})
    async with make_sandbox(options_of(repair, config.sandbox)) as sandbox:
        # What a loaded machine does to the wall is not asked.
        guarded = replace(await guarded_grading(sandbox, repair), timeout_s=600)

        async def fresh() -> None:
            await sandbox.reset()
            await fill(sandbox, trees.whole, commit=False)

        async def spent(grading: Grading, patch: str) -> float:
            before = cpu_s()
            verdict = await grade(sandbox, grading, patch, fresh)
            assert verdict.resolved is (patch != nothing), verdict.reason
            return cpu_s() - before

        plain = await spent(replace(guarded, bugs=(), others=()), repair.patch()[0])
        for_nothing = await spent(guarded, nothing)
        return for_nothing / plain, await spent(guarded, repair.patch()[0]) / plain


async def compare_gradings(config: SweSandbox.Config, episodes: int) -> bool:
    """Print what grading with decoys costs; True if it costs too much."""
    found = [await ratios(config, index) for index in range(episodes)]
    nothing, one = zip(*found, strict=True)
    bars = (MOST_FOR_NOTHING, MEDIAN_FOR_ONE, MOST_FOR_ONE)
    measured = (max(nothing), statistics.median(one), max(one))
    names = ("earns nothing, most", "earns 1, median", "earns 1, most")
    for name, ratio, most in zip(names, measured, bars, strict=True):
        print(f"{f'grading in plain runs, {name}':44} {ratio:6.2f}  at most {most:g}")
    return any(ratio > most for ratio, most in zip(measured, bars, strict=True))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="bwrap")
    parser.add_argument("--episodes", type=int, default=12)
    options = parser.parse_args()
    return asyncio.run(measure(options.backend, options.episodes))


async def measure(backend: str, episodes: int) -> int:
    """One after the other, then several at once."""
    config = SweSandbox.Config(sandbox=SandboxOptions(backend=backend))
    adopt()
    parts, alone = Parts(), Parts()
    await play(config, 0, Parts())  # the first sandbox starts
    setattr(swe_sandbox, "take_patch", alone.timed("patch", take_patch))  # noqa: B010
    setattr(swe_sandbox, "grade", alone.timed("grading", grade))  # noqa: B010
    overheads: list[float] = []
    for index in range(episodes):
        before = cpu_s()
        env = await play(config, index, parts)
        spent = cpu_s() - before
        repair = repair_of(env.task)
        assert isinstance(repair, BuiltRepair)
        overheads.append(spent - plain_pytest(repair))
    score, patch, grading = parts.median("score"), alone.median("patch"), alone.median("grading")
    rest = (score[0] - patch[0] - grading[0], score[1] - patch[1] - grading[1])
    parted = (parts.median("start"), parts.median("tools"), patch, rest, grading)
    rows = dict(zip(PARTS, parted, strict=True))
    for name, (wall, cpu) in rows.items():
        print(f"{name:36} {wall:6.3f} s wall  {cpu:6.3f} s CPU")
    overhead, start = statistics.median(overheads), rows["start"][0]
    print(f"{'beside one run of pytest':36} {overhead:22.3f} s CPU  at most {OVERHEAD_CPU_S:g}")
    print(f"{'warm start':36} {start:6.3f} s wall  at most {WARM_START_S:g}")
    # Several at once: who waits for any child would take another's exit code away.
    setattr(swe_sandbox, "take_patch", take_patch)  # noqa: B010
    setattr(swe_sandbox, "grade", grade)  # noqa: B010
    began = time.perf_counter()
    for first in range(0, episodes, AT_ONCE):
        untimed = [play(config, first + i, Parts(lambda: 0.0)) for i in range(AT_ONCE)]
        await asyncio.gather(*untimed)
    count = -(-episodes // AT_ONCE) * AT_ONCE
    per_hour = 3600 * count / (time.perf_counter() - began)
    print(f"{f'episodes per hour, {AT_ONCE} at once':36} {per_hour:6.0f}")
    dear = await compare_gradings(config, episodes)
    await default_services().sandboxes.close()
    left = sum(found.pid == os.getpid() for found in find_sandboxes())
    print(f"{'sandboxes left behind':36} {left:6}")
    return int(dear or overhead > OVERHEAD_CPU_S or start > WARM_START_S or left > 0)


if __name__ == "__main__":
    sys.exit(main())
