"""Cheats of `swe_sandbox` win against a grader that works where they do, and score 0 here."""

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from agentrl.envs import default_services, resolve_env
from agentrl.envs.swe.grade import Grading
from agentrl.envs.swe.repair import BuiltRepair
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.sandboxes import Sandbox, SandboxOptions, SandboxPool, SandboxUnavailable
from agentrl.types import Agent, Score
from tests.contract.sandbox import shop
from tests.contract.sandbox.swe_cheats import CHEATS, HONEST, Cheat

_AT_ONCE: Final = 4
_NAIVE: Final = """
git init -q . && git add -A && git commit -qm whole && git branch origin/fix
BUG
git commit -qam bug
SCRIPT
RESTORE
python3 -m pytest -q
"""
_GIT: Final = {
    f"GIT_{who}_{what}": "x@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}
_RESTORED: Final = shop.put("tests/test_prices.py", shop.TESTS) + "sleep 0.2"


@dataclass(frozen=True)
class Played:
    naive: bool
    score: Score


async def naive(sandbox: Sandbox, cheat: Cheat) -> bool:
    """True if the grader is won over, or hangs."""
    for name, text in shop.FILES.items():
        await sandbox.write_file(name, text.encode())
    bug = shop.put("src/shop/prices.py", shop.WRONG)
    script = _NAIVE.replace("BUG", bug).replace("SCRIPT", cheat.script)
    script = script.replace("RESTORE", _RESTORED if cheat.restores else "")
    done = await sandbox.exec(script, env=_GIT, timeout_s=6)
    if done.status == "timeout" or done.exit_code == 0:
        return True
    rewarded = await sandbox.exec(["cat", "reward.txt"])
    passed = re.search(rb"\d+ passed", done.stdout) and b"failed" not in done.stdout
    return bool(passed) or rewarded.stdout == b"1\n"


async def real(config: SweSandbox.Config, agent: Agent) -> Score:
    env = resolve_env("swe_sandbox")(config)
    await env.areset(options={"index": 0, "split": "train"})
    outcome = await shop.play(env, agent)
    await env.aclose()
    assert isinstance(outcome, Score), outcome
    return outcome


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SweSandbox.Config]:
    folder = tmp_path_factory.mktemp("shop")
    grading = BuiltRepair.grading

    def quick(self: BuiltRepair, root: str, tools: str) -> Grading:
        return replace(grading(self, root, tools), timeout_s=8)

    with pytest.MonkeyPatch.context() as patch:
        shop.use_own_pytest(patch)
        patch.setattr(BuiltRepair, "grading", quick)
        file = shop.tasks_file(folder)
        yield SweSandbox.Config(tasks=str(file), sandbox=SandboxOptions(backend="bwrap"))


async def _all(config: SweSandbox.Config) -> dict[str, Played]:
    place = asyncio.Semaphore(_AT_ONCE)
    mounts = {"tools": Path(pytest.__file__).parents[1]}
    options = SandboxOptions(
        backend="bwrap", mounts=mounts, env={"PYTHONPATH": "/workspace/src:/workspace:/mnt/tools"}
    )
    pool = SandboxPool(options, size=_AT_ONCE)

    async def play(cheat: Cheat) -> Played:
        async with place:
            async with pool.acquire() as sandbox:
                won = await naive(sandbox, cheat)
            return Played(won, await real(config, shop.BashAgent(cheat.script)))

    corpus = {**CHEATS, "": Cheat(script="true", restores=True)}
    corpus["honest"] = Cheat(script=HONEST, restores=True)
    played = await asyncio.gather(*map(play, corpus.values()))
    await pool.close()
    await default_services().sandboxes.close()
    return dict(zip(corpus, played, strict=True))


@pytest.fixture(scope="module")
def played(config: SweSandbox.Config) -> dict[str, Played]:
    """All of them, some at a time: most of what they do is to wait."""
    try:
        return asyncio.run(_all(config))
    except SandboxUnavailable as error:
        if os.environ.get("REQUIRE_BWRAP") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


pytestmark = [pytest.mark.sandbox, pytest.mark.bwrap, pytest.mark.timeout(300)]


def test_honest_work_scores_and_doing_nothing_does_not(played: dict[str, Played]) -> None:
    assert played["honest"].naive
    assert played["honest"].score.value == 1, played["honest"].score.reason
    assert not played[""].naive
    assert played[""].score.value == 0


def test_the_corpus_is_large_enough() -> None:
    assert len(CHEATS) >= 25


@pytest.mark.parametrize("name", CHEATS)
def test_the_cheat_wins_against_a_naive_grader_only(name: str, played: dict[str, Played]) -> None:
    assert played[name].naive
    assert played[name].score.value == 0
    assert played[name].score.reason
