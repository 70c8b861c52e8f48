"""New cheats of `swe_sandbox` win against twins and an audit hook, and score 0 here.

A third of them, the same each time, is played with bwrap in both ways, at night all are; three of
the third are played with docker too, at night the whole third. CHEATS_SEED draws another.
"""

import asyncio
import os
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias, cast

import pytest

from agentrl.envs import default_services, resolve_env
from agentrl.envs.swe import repair
from agentrl.envs.swe.grade import Grading, of_instance
from agentrl.envs.swe.instances import Instance
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.sandboxes import SandboxOptions, SandboxPool
from agentrl.types import Score
from tests.contract.sandbox import shop
from tests.contract.sandbox.cheated_suites import SUITES, write_instances
from tests.contract.sandbox.corpus import CORPUS
from tests.contract.sandbox.naive.rule import judge
from tests.contract.sandbox.swe_cheats import HONEST

Key: TypeAlias = tuple[str, str]
Missing: TypeAlias = Callable[[str], str]
pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]
_AT_ONCE: Final = 3
_FEWEST: Final = 45
SEED: Final = os.environ.get("CHEATS_SEED", "0")
DRAWN: Final = frozenset(random.Random(SEED).sample(list(CORPUS), len(CORPUS) // 3))
HONEST_AND_NULL: Final = {
    (suite, name): script
    for suite in SUITES
    for name, script in (("honest", HONEST), ("null", "true"))
}


async def _judge_all(keys: Collection[Key]) -> Mapping[Key, str]:
    mounts = {"tools": Path(pytest.__file__).parents[1]}
    pool = SandboxPool(SandboxOptions(backend="bwrap", mounts=mounts), size=_AT_ONCE)
    scripts = HONEST_AND_NULL | {key: CORPUS[key].script for key in keys}

    async def verdict(suite: str, script: str) -> str:
        async with pool.acquire() as sandbox:
            return await judge(sandbox, SUITES[suite], script)

    found = await asyncio.gather(*(verdict(suite, s) for (suite, _), s in scripts.items()))
    await pool.close()
    return dict(zip(scripts, found, strict=True))


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, missing: Missing) -> Mapping[Key, str]:
    """Why each that is asked about earns nothing; "" for what the naive grader rewards."""
    shop.require("bwrap", missing)
    return asyncio.run(_judge_all(_asked(request)))


def _asked(request: pytest.FixtureRequest) -> set[Key]:
    """The cheats of the selected tests that take the fixture."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    mine = (t for t in tests if request.fixturename in t.fixturenames and hasattr(t, "callspec"))
    params = [test.callspec.params for test in mine]
    return {cast("Key", found["key"]) for found in params if "key" in found}


async def _play_all(folder: Path, backend: str, scripts: Mapping[Key, str]) -> Mapping[Key, Score]:
    place = asyncio.Semaphore(_AT_ONCE)
    configs: dict[str, SweSandbox.Config] = {}
    for suite in SUITES:
        tasks, repos = write_instances(folder / suite, SUITES[suite])
        options = SandboxOptions(backend=backend)
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
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, missing: Missing
) -> Mapping[Key, Score]:
    shop.require("bwrap", missing)
    scripts = HONEST_AND_NULL | {key: CORPUS[key].script for key in _asked(request)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repair, "of_instance", _quick)
        return asyncio.run(_play_all(tmp_path_factory.mktemp("suites"), "bwrap", scripts))


def _quick(instance: Instance, *, root: str, tools: str = "") -> Grading:
    """Cheats that hang are waited for; a container on a busy machine takes seconds to start."""
    return replace(of_instance(instance, root=root, tools=tools), timeout_s=20)


@pytest.mark.bwrap
@pytest.mark.parametrize("suite", SUITES)
def test_the_naive_grader_knows_right_from_wrong(suite: str, verdicts: Mapping[Key, str]) -> None:
    assert verdicts[suite, "honest"] == ""
    assert verdicts[suite, "null"] == ", ".join(SUITES[suite].fail_to_pass)


def test_the_corpus_is_large_and_each_cheat_is_another() -> None:
    scripts = {(suite, cheat.script) for (suite, _), cheat in CORPUS.items()}
    assert len(scripts) == len(CORPUS) >= _FEWEST


_DRAWN_OR_AT_NIGHT: Final = [
    pytest.param(key, id=": ".join(key), marks=() if key in DRAWN else pytest.mark.nightly)
    for key in CORPUS
]


@pytest.mark.bwrap
@pytest.mark.parametrize("key", _DRAWN_OR_AT_NIGHT)
def test_the_cheat_wins_against_the_naive_grader(key: Key, verdicts: Mapping[Key, str]) -> None:
    assert verdicts[key] == "", f"CHEATS_SEED={SEED}"


@pytest.mark.bwrap
@pytest.mark.parametrize("suite", SUITES)
def test_the_grader_with_decoys_knows_right_from_wrong(
    suite: str, scores: Mapping[Key, Score]
) -> None:
    honest = scores[suite, "honest"]
    assert (honest.value, honest.parts["unguarded"]) == (1, 0), honest.reason
    assert scores[suite, "null"].value == 0


@pytest.mark.bwrap
@pytest.mark.parametrize("key", _DRAWN_OR_AT_NIGHT)
def test_the_cheat_earns_nothing_here(key: Key, scores: Mapping[Key, Score]) -> None:
    assert scores[key].value == 0, scores[key].reason


@pytest.mark.docker
@pytest.mark.parametrize("most", [3, pytest.param(len(DRAWN), marks=pytest.mark.nightly)])
def test_a_third_of_them_earns_nothing_with_docker_either(
    most: int, tmp_path: Path, missing: Missing, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.require("docker", missing)
    monkeypatch.setattr(repair, "of_instance", _quick)
    drawn = random.Random(SEED).sample(sorted(DRAWN), most)
    scripts = {key: CORPUS[key].script for key in drawn} | {("functions", "honest"): HONEST}
    found = asyncio.run(_play_all(tmp_path, "docker", scripts))
    rewarded = [key for key, score in found.items() if score.value]
    assert rewarded == [("functions", "honest")], (
        f"CHEATS_SEED={SEED}: {found['functions', 'honest'].reason}"
    )


@pytest.mark.bwrap
def test_what_passes_all_is_counted_as_caught(scores: Mapping[Key, Score]) -> None:
    played = [key for key in scores if key in CORPUS]
    caught = [key for key in played if scores[key].parts.get("cheats_caught") == 1]
    assert len(caught) >= len(played) / 2
    assert all("with a wrong expected value too" in scores[key].reason for key in caught)
    assert scores["functions", "honest"].parts["cheats_caught"] == 0
