"""New cheats of `swe_sandbox` win against twins and an audit hook, and score 0 here."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from agentrl.envs import default_services, resolve_env
from agentrl.envs.swe import repair
from agentrl.envs.swe.grade import Grading, of_instance
from agentrl.envs.swe.instances import Instance
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.sandboxes import SandboxOptions, SandboxPool, SandboxUnavailable
from agentrl.types import Score
from tests.contract.sandbox import shop
from tests.contract.sandbox.cheated_suites import SUITES, write_instances
from tests.contract.sandbox.corpus import CORPUS
from tests.contract.sandbox.naive.rule import judge
from tests.contract.sandbox.swe_cheats import HONEST

pytestmark = [pytest.mark.sandbox, pytest.mark.bwrap, pytest.mark.timeout(300)]
_AT_ONCE: Final = 3
_FEWEST: Final = 45


async def _judge_all() -> Mapping[tuple[str, str], str]:
    mounts = {"tools": Path(pytest.__file__).parents[1]}
    pool = SandboxPool(SandboxOptions(backend="bwrap", mounts=mounts), size=_AT_ONCE)
    scripts = {key: cheat.script for key, cheat in CORPUS.items()}
    for suite in SUITES:
        scripts |= {(suite, "honest"): HONEST, (suite, "null"): "true"}

    async def verdict(suite: str, script: str) -> str:
        async with pool.acquire() as sandbox:
            return await judge(sandbox, SUITES[suite], script)

    found = await asyncio.gather(*(verdict(suite, s) for (suite, _), s in scripts.items()))
    await pool.close()
    return dict(zip(scripts, found, strict=True))


@pytest.fixture(scope="module")
def verdicts() -> Mapping[tuple[str, str], str]:
    """Why each earns nothing; "" for what the naive grader rewards."""
    try:
        return asyncio.run(_judge_all())
    except SandboxUnavailable as error:
        if os.environ.get("REQUIRE_BWRAP") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


async def _play_all(folder: Path) -> Mapping[tuple[str, str], Score]:
    place = asyncio.Semaphore(_AT_ONCE)
    scripts = {key: cheat.script for key, cheat in CORPUS.items()}
    configs: dict[str, SweSandbox.Config] = {}
    for suite in SUITES:
        scripts |= {(suite, "honest"): HONEST, (suite, "null"): "true"}
        tasks, repos = write_instances(folder / suite, SUITES[suite])
        options = SandboxOptions(backend="bwrap")
        configs[suite] = SweSandbox.Config(tasks=str(tasks), repos=str(repos), sandbox=options)

    async def score(suite: str, script: str) -> Score:
        async with place:
            (task,) = (t for found in SweSandbox.list_tasks(configs[suite]).values() for t in found)
            env = resolve_env("swe_sandbox")(configs[suite])
            await env.areset(options={"task": task})
            outcome = await shop.play(env, shop.BashAgent(script))
            await env.aclose()
            assert isinstance(outcome, Score), outcome
            return outcome

    found = await asyncio.gather(*(score(suite, s) for (suite, _), s in scripts.items()))
    await default_services().sandboxes.close()
    return dict(zip(scripts, found, strict=True))


@pytest.fixture(scope="module")
def scores(
    tmp_path_factory: pytest.TempPathFactory, verdicts: Mapping[tuple[str, str], str]
) -> Mapping[tuple[str, str], Score]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repair, "of_instance", _quick)
        return asyncio.run(_play_all(tmp_path_factory.mktemp("suites")))


def _quick(instance: Instance, *, root: str, tools: str = "") -> Grading:
    return replace(of_instance(instance, root=root, tools=tools), timeout_s=8)


@pytest.mark.parametrize("suite", SUITES)
def test_the_naive_grader_knows_right_from_wrong(
    suite: str, verdicts: Mapping[tuple[str, str], str]
) -> None:
    assert verdicts[suite, "honest"] == ""
    assert verdicts[suite, "null"] == ", ".join(SUITES[suite].fail_to_pass)


def test_the_corpus_is_large_and_each_cheat_is_another() -> None:
    scripts = {(suite, cheat.script) for (suite, _), cheat in CORPUS.items()}
    assert len(scripts) == len(CORPUS) >= _FEWEST


@pytest.mark.parametrize("key", CORPUS, ids=": ".join)
def test_the_cheat_wins_against_the_naive_grader(
    key: tuple[str, str], verdicts: Mapping[tuple[str, str], str]
) -> None:
    assert verdicts[key] == ""


@pytest.mark.parametrize("suite", SUITES)
def test_the_grader_with_decoys_knows_right_from_wrong(
    suite: str, scores: Mapping[tuple[str, str], Score]
) -> None:
    honest = scores[suite, "honest"]
    assert (honest.value, honest.parts["unguarded"]) == (1, 0), honest.reason
    assert scores[suite, "null"].value == 0


@pytest.mark.parametrize("key", CORPUS, ids=": ".join)
def test_the_cheat_earns_nothing_here(
    key: tuple[str, str], scores: Mapping[tuple[str, str], Score]
) -> None:
    assert scores[key].value == 0, scores[key].reason


def test_what_passes_all_is_counted_as_caught(scores: Mapping[tuple[str, str], Score]) -> None:
    caught = [key for key in CORPUS if scores[key].parts.get("cheats_caught") == 1]
    assert len(caught) >= len(CORPUS) / 2
    assert all("with a wrong expected value too" in scores[key].reason for key in caught)
    assert scores["functions", "honest"].parts["cheats_caught"] == 0
