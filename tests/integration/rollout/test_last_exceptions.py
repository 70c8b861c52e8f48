"""Whatever a user's code raises, short of a signal, ends its episode alone, with a sentence."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from agentrl.engine.scripted import ScriptedEngine
from agentrl.envs import EnvServices, ToolEnv
from agentrl.orchestration.observers import journal
from agentrl.rollout import (
    Codec,
    Collector,
    CollectSettings,
    EpisodeKey,
    EpisodeLimits,
    GroupJob,
    gather_groups,
)
from agentrl.run_dir import RunDirectory
from agentrl.tools import tool
from agentrl.types import AssistantTurn, EpisodeView, Invalid, Task, ToolCall

SERVICES: Final = EnvServices()
LIMITS: Final = EpisodeLimits(max_new_tokens=64, max_context_tokens=512, wall_s=5.0, setup_s=5.0)


class Ends(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class MuteAbove(Mute):
    def __str__(self) -> str:
        raise GeneratorExit


ERRORS: Final = (GeneratorExit, SystemExit, asyncio.CancelledError, Ends, Mute, MuteAbove)


@pytest.fixture(scope="module", autouse=True)
def _services() -> Iterator[None]:
    yield
    SERVICES.close()


class Env(ToolEnv):
    """Raises in one place of the last task; the other episodes go on."""

    tasks = {"train": [Task(prompt="Do it.")]}  # noqa: RUF012
    place = ""
    error: type[BaseException] = Exception

    def raises(self, place: str) -> None:
        if place == self.place and self.task.data["raises"]:
            raise self.error


class Raises(Env):
    def setup(self) -> None:
        self.raises("setup")

    @tool
    def use(self) -> str:
        """Do something."""
        self.raises("tool")
        return "done"

    def teardown(self) -> None:
        self.raises("teardown")

    def score(self, answer: str) -> float:
        self.raises("score")
        return 1.0


class RaisesInLoop(Env):
    async def setup(self) -> None:
        self.raises("setup")

    @tool
    async def use(self) -> str:
        """Do something."""
        self.raises("tool")
        return "done"

    async def teardown(self) -> None:
        self.raises("teardown")

    async def score(self, answer: str) -> float:
        self.raises("score")
        return 1.0


class Agent:
    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.error = error

    def act(self, view: EpisodeView) -> AssistantTurn:
        if self.error is not None and view.task.data["raises"]:
            raise self.error
        if len(view.messages) == 1:
            return AssistantTurn(calls=(ToolCall(name="use"),))
        return AssistantTurn(text="that is all")


def verifiers_of(error: type[BaseException]) -> tuple[type[object], ...]:
    class InLoop:
        async def score(self, task: Task, answer: object) -> float:
            if task.data["raises"]:
                raise error
            return 1.0

    class InProcess:
        in_process = True

        def score(self, task: Task, answer: object) -> float:
            if task.data["raises"]:
                raise error
            return 1.0

    return InLoop, InProcess


async def assert_one_is_lost(
    codec: Codec, kind: type[ToolEnv], *, verifier: object = None, agent: Agent | None = None
) -> str:
    """The sentence of the one episode that is lost; two that are played beside it are not."""
    played = [
        GroupJob(
            key=EpisodeKey.first(run=0, step=1, place=i),
            env="env",
            make_env=lambda: kind(verifier=verifier, services=SERVICES),
            task=Task(prompt="Do it.", id=str(i), data={"raises": i == 1}),
            split="train",
        )
        for i in range(3)
    ]
    engine = ScriptedEngine(agent or Agent(), codec.renderer(kind(services=SERVICES).tool_schemas))
    settings = CollectSettings(
        limits=LIMITS, temperature=1.0, concurrency=3, attempts=1, max_invalid_share=1.0
    )
    collector = Collector(engine=engine, codec=codec, settings=settings)
    collected = await gather_groups(collector.collect(played, group_size=1))
    assert [episode.task.id for episode in collected.episodes] == ["0", "2"]
    (lost,) = collected.invalid
    assert isinstance(lost.outcome, Invalid)
    return lost.outcome.reason


@pytest.mark.parametrize("kind", [Raises, RaisesInLoop])
@pytest.mark.parametrize("place", ["setup", "tool", "teardown", "score"])
async def test_what_a_hook_raises_ends_its_episode_alone(
    codec: Codec, kind: type[Env], place: str
) -> None:
    for error in ERRORS:
        made = type(kind.__name__, (kind,), {"place": place, "error": error})
        said = await assert_one_is_lost(codec, made)
        where = "tool use" if place == "tool" else place
        assert said.startswith(f"{where} raised {error.__name__}: ")
        assert f"{Path(__file__).name}, line " in said


async def test_what_a_verifier_raises_ends_its_episode_alone(codec: Codec) -> None:
    for error in ERRORS:
        for verifier in verifiers_of(error):
            said = await assert_one_is_lost(codec, Raises, verifier=verifier())
            assert said.startswith(f"verifier {verifier.__qualname__} raised {error.__name__}: ")


async def test_what_an_agent_raises_ends_its_episode_alone(codec: Codec) -> None:
    for error in ERRORS:
        said = await assert_one_is_lost(codec, Raises, agent=Agent(error))
        assert said.startswith(f"the agent's act raised {error.__name__}: ")


def test_the_journal_names_an_exception_that_cannot_say_anything(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path)
    with pytest.raises(Mute), journal(directory, ()):
        raise Mute
    assert '"reason":"Mute: <exception str() failed>"' in directory.events.read_text()
