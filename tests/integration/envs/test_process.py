"""Environments in processes of their own: what goes wrong between the processes."""

import asyncio
import os
import signal
from typing import Any

import pytest

from agentrl.envs import EnvServices, ToolEnv, Transition
from agentrl.errors import EnvironmentFault
from agentrl.tools import tool
from agentrl.types import AssistantTurn, EpisodeStop, Invalid, Score, ToolCall


class Remote(ToolEnv):
    tasks = ({"prompt": "p"},)
    isolation = "process"
    max_tool_tokens = 50
    grace_s = 0.05

    async def setup(self) -> None:
        self.turns = 0

    @tool
    async def dump(self) -> str:
        """Return much."""
        self.turns += 1
        return "x" * 10_000

    @tool
    async def wait(self) -> str:
        """Wait."""
        await asyncio.sleep(0.3)
        return "waited"

    @tool
    def die(self) -> str:
        """End the process."""
        os._exit(3)

    @tool
    def stand_still(self) -> str:
        """Stop the process, as somebody from outside may."""
        os.kill(os.getpid(), signal.SIGSTOP)
        return "went on"

    def score(self, answer: Any) -> float:
        return float(self.turns)


class Hurried(Remote):
    tool_timeout_s = 0.5


class Unready(Remote):
    async def setup(self) -> None:
        raise OSError("no disk")


class Verified(ToolEnv):
    tasks = ({"prompt": "p", "answer": "7"},)
    isolation = "process"
    verifier = "exact_number"


def call(name: str) -> AssistantTurn:
    return AssistantTurn(calls=(ToolCall(name=name, arguments={}, id="call_0"),))


@pytest.fixture(scope="module")
def services() -> Any:
    services = EnvServices()
    yield services
    services.close()


async def test_results_are_cut_on_this_side_too(services: EnvServices) -> None:
    env = Remote(services=services)
    await env.areset(seed=0)
    transition = await env.advance(call("dump"))
    assert len(transition.messages[0].content) <= 200
    assert env.conversation[-1] == transition.messages[0]
    await env.advance(AssistantTurn(text="bye"))
    assert await env.ascore() == Score(value=1.0)
    assert len(env.conversation) == 4
    await env.aclose()


async def test_a_process_that_dies_is_a_fault_and_close_is_quiet(services: EnvServices) -> None:
    env = Remote(services=services)
    await env.areset(seed=0)
    with pytest.raises(EnvironmentFault, match="process died in advance"):
        await env.advance(call("die"))
    assert isinstance(await env.ascore(), Invalid)
    await env.aclose()
    await env.areset(seed=0)
    await env.aclose()


@pytest.mark.parametrize(
    ("kind", "deadline_s", "said"),
    [
        (Remote, 1.0, r"died in advance \(serve did not return: the process stood still for 1 s"),
        (Hurried, 60.0, "stands still in advance"),
    ],
)
async def test_a_process_that_was_stopped_is_a_fault_and_no_slow_tool(
    kind: type[Remote], deadline_s: float, said: str
) -> None:
    services = EnvServices(deadline_s=deadline_s)
    env = kind(services=services)
    await env.areset(seed=0)
    with pytest.raises(EnvironmentFault, match=said):
        await env.advance(call("stand_still"))
    assert isinstance(await env.ascore(), Invalid)
    await env.aclose()
    services.close()


async def test_a_setup_that_fails_there_is_a_fault_here(services: EnvServices) -> None:
    env = Unready(services=services)
    with pytest.raises(EnvironmentFault, match="setup raised OSError: no disk"):
        await env.areset(seed=0)
    assert not env.is_open


async def test_a_verifier_scores_on_this_side(services: EnvServices) -> None:
    env = Verified(services=services)
    await env.areset(seed=0)
    await env.advance(AssistantTurn(text="7"))
    assert await env.ascore() == Score(value=1.0)
    await env.aclose()


async def cut_off(env: ToolEnv) -> Transition:
    await env.areset(seed=0)
    turn = call("wait")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.advance(turn), 0.05)
    return await env.truncate(EpisodeStop.WALL_TIME, turn)


async def test_a_turn_that_is_cut_off_is_waited_for_a_moment(
    services: EnvServices,
) -> None:
    env = Remote(services=services)
    transition = await cut_off(env)
    assert transition.stop is EpisodeStop.WALL_TIME
    assert [message.role for message in env.conversation] == ["user", "assistant", "tool"]
    assert await env.ascore() == Score(value=0.0)
    await env.aclose()


async def test_a_process_that_is_busy_at_the_end_of_the_budget_is_killed(
    services: EnvServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.envs.remote._SLACK_S", 0.05)
    env = Remote(services=services)
    assert (await cut_off(env)).stop is EpisodeStop.WALL_TIME
    assert [message.role for message in env.conversation] == ["user", "assistant"]
    assert await env.ascore() == Score(value=0.0)
    await env.aclose()
