"""No honest repair earns less than 1, however unlike the reference it is."""

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from agentrl.envs import default_services, resolve_env
from agentrl.envs.swe.build.records import TASKS
from agentrl.envs.swe.repair import BuiltRepair, read_repairs
from agentrl.envs.swe_sandbox import SweSandbox
from agentrl.errors import ConfigError
from agentrl.sandboxes import SandboxOptions, SandboxUnavailable
from agentrl.types import Agent, AssistantTurn, EpisodeView, Outcome, Score
from tests.contract.sandbox import shop
from tests.contract.sandbox.honest_repairs import SHOP, rewritten

pytestmark = [pytest.mark.sandbox, pytest.mark.bwrap]
_AT_ONCE: Final = 2
_FEWEST_TASKS: Final = 5


@dataclass(frozen=True)
class WritingAgent:
    """Writes files, then submits."""

    files: Mapping[str, str]

    def act(self, view: EpisodeView) -> AssistantTurn:
        played = sum(message.role == "assistant" for message in view.messages)
        if played == len(self.files):
            return shop.call("submit")
        path, text = list(self.files.items())[played]
        return shop.call("write_file", path=path, content=text)


async def _play_all(config: SweSandbox.Config, agents: Sequence[tuple[str, Agent]]) -> list[str]:
    """What was said of each that got less than 1."""
    tasks = {t.id: t for found in SweSandbox.list_tasks(config).values() for t in found}
    place = asyncio.Semaphore(_AT_ONCE)

    async def play(task: str, agent: Agent) -> Outcome:
        async with place:
            env = resolve_env("swe_sandbox")(config)
            await env.areset(options={"task": tasks[task]})
            outcome = await shop.play(env, agent)
            await env.aclose()
            return outcome

    found = await asyncio.gather(*(play(task, agent) for task, agent in agents))
    await default_services().sandboxes.close()
    return [str(f) for f in found if not (isinstance(f, Score) and f.value == 1)]


def _play(config: SweSandbox.Config, agents: Sequence[tuple[str, Agent]]) -> list[str]:
    try:
        return asyncio.run(_play_all(config, agents))
    except (SandboxUnavailable, ConfigError) as error:
        if isinstance(error, SandboxUnavailable) and os.environ.get("REQUIRE_BWRAP") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


def _of_shop(folder: Path, episodes: int) -> list[str]:
    scripts = itertools.islice(itertools.cycle(SHOP.values()), episodes)
    with pytest.MonkeyPatch.context() as patch:
        shop.use_own_pytest(patch)
        file = shop.tasks_file(folder)
        config = SweSandbox.Config(tasks=str(file), sandbox=SandboxOptions(backend="bwrap"))
        return _play(config, [("shop-0-percent", shop.BashAgent(script)) for script in scripts])


def _of_packages(episodes: int) -> list[str]:
    """Of tasks that come along; their archives are from the package index."""
    config = SweSandbox.Config(sandbox=SandboxOptions(backend="bwrap"))
    found, _ = read_repairs(str(TASKS), "", "", False)
    made = {
        name: rewritten(*repair.texts)
        for name, repair in found.items()
        if isinstance(repair, BuiltRepair)
    }
    agents = [(name, WritingAgent(files)) for name, files in made.items() if files]
    assert len(agents) >= _FEWEST_TASKS
    return _play(config, [*itertools.islice(itertools.cycle(agents), episodes)])


def test_there_are_many_and_each_is_another() -> None:
    assert len(set(SHOP.values())) == len(SHOP) >= 20


@pytest.mark.timeout(300)
def test_no_false_alarm_in_some_episodes(tmp_path: Path) -> None:
    assert _of_shop(tmp_path, 30) == []


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_no_false_alarm_in_many_episodes(tmp_path: Path) -> None:
    """Half of them in tasks that come along."""
    assert _of_shop(tmp_path, 150) == []
    assert _of_packages(150) == []
