import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from torch import Tensor

from agentrl.engine import Engine
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import EngineError
from agentrl.types import AssistantTurn, EpisodeSession, EpisodeView, Sampling, StopReason, Task

STOP = 1


class Nothing:
    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())


class Letters:
    def assistant(self, turn: AssistantTurn) -> list[int]:
        return [*(ord(letter) for letter in turn.text), STOP]


@dataclass
class Hello:
    def act(self, view: EpisodeView) -> AssistantTurn:
        assert isinstance(view.task.prompt, str)
        return AssistantTurn(text=f"re: {view.task.prompt}")


def session(prompt: str = "hi", key: str = "a") -> EpisodeSession:
    return EpisodeSession(key, lambda: EpisodeView(task=Task(prompt=prompt), messages=()))


def sampling(max_new_tokens: int = 50) -> Sampling:
    return Sampling(max_new_tokens=max_new_tokens, stop_ids=frozenset({STOP}))


async def test_the_agents_turn_comes_back_as_ids() -> None:
    engine: Engine = ScriptedEngine(Hello(), Letters())
    completion = await engine.generate([5], sampling(), session("hi"))
    assert completion.ids_T.tolist() == [*map(ord, "re: hi"), STOP]
    assert completion.stop_reason is StopReason.STOP
    assert completion.logprobs_T.tolist() == [0.0] * 7
    assert completion.versions_T.tolist() == [0] * 7
    assert completion.digest


async def test_max_tokens_cuts_the_turn() -> None:
    engine = ScriptedEngine(lambda view: AssistantTurn(text="abcdef"), Letters())
    cut = await engine.generate([5], sampling(3), session())
    assert (cut.ids_T.tolist(), cut.stop_reason) == ([97, 98, 99], StopReason.LENGTH)
    whole = await engine.generate([5], sampling(7), session())
    assert whole.stop_reason is StopReason.STOP


async def test_the_context_cuts_the_turn() -> None:
    engine = ScriptedEngine(lambda view: AssistantTurn(text="abcdef"), Letters(), context_length=10)
    cut = await engine.generate([5] * 8, sampling(), session())
    assert (len(cut.ids_T), cut.stop_reason) == (2, StopReason.LENGTH)


async def test_a_session_without_view_is_an_error() -> None:
    with pytest.raises(EngineError, match="has no view"):
        await ScriptedEngine(Hello(), Letters()).generate([5], sampling(), EpisodeSession("a"))


async def test_versions_follow_updates() -> None:
    engine = ScriptedEngine(Hello(), Letters())
    await engine.update_weights(Nothing(), 3)
    assert (await engine.generate([5], sampling(), session())).versions_T[0] == 3
    with pytest.raises(EngineError, match="version 3"):
        await engine.update_weights(Nothing(), 3)


async def test_pause_abort_and_close() -> None:
    engine = ScriptedEngine(Hello(), Letters(), latency_s=0.005)
    await engine.pause()
    running = [asyncio.create_task(engine.generate([5], sampling(), session(key=k))) for k in "ab"]
    await asyncio.sleep(0.02)
    assert (await engine.health()).running == 2
    await engine.abort(session(key="a"))
    await engine.resume()
    aborted, answered = await asyncio.gather(*running)
    assert (aborted.stop_reason, len(aborted.ids_T)) == (StopReason.ABORT, 0)
    assert answered.stop_reason is StopReason.STOP
    last = asyncio.create_task(engine.generate([5], sampling(), session()))
    await asyncio.sleep(0)
    await engine.aclose()
    with pytest.raises(EngineError, match="closed"):
        await last
    assert not (await engine.health()).alive
