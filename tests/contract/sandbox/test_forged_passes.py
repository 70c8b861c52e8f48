"""New cheats of `swe_sandbox` win against a grader with twins and an audit hook."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from agentrl.sandboxes import SandboxOptions, SandboxPool, SandboxUnavailable
from tests.contract.sandbox.cheated_suites import SUITES
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
