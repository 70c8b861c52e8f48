"""The real server behind a proxy that misbehaves: each fault is one EngineError, or is overcome."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from agentrl.engine.servers.process import Server
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.errors import EngineError
from agentrl.types import EpisodeSession, Sampling
from tests.contract.engine.proxy import PROMPT, Proxy

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

SAMPLING = Sampling(max_new_tokens=6, stop_ids=frozenset({0, 2}))


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    made = Proxy(server.url)
    async for _ in made.run():
        yield made


@pytest.fixture
async def engine(proxy: Proxy) -> AsyncIterator[SglangEngine]:
    made = SglangEngine([proxy.url], vocab_size=768, context_length=2040, timeout_s=2)
    await made.start(ready_s=10)
    yield made
    await made.aclose()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("500", "answered 500: made up"),
        ("wrong id", "they must be those of the same ids"),
        ("one logprob too many", "they must be those of the same ids"),
        ("prompt in front", "without the prompt"),
        ("no versions", "a router between may drop fields"),
    ],
)
async def test_a_fault_is_one_sentence(
    proxy: Proxy, engine: SglangEngine, fault: str, said: str
) -> None:
    proxy.faults = [fault]
    with pytest.raises(EngineError) as caught:
        await engine.generate(PROMPT, SAMPLING, EpisodeSession("a"))
    assert said in str(caught.value)
    assert len((await engine.generate(PROMPT, SAMPLING, EpisodeSession("a"))).ids_T)


@pytest.mark.parametrize("fault", ["503", "cut"])
async def test_what_another_try_mends_is_tried_again(
    proxy: Proxy, engine: SglangEngine, fault: str
) -> None:
    proxy.faults = [fault, fault]
    assert len((await engine.generate(PROMPT, SAMPLING, EpisodeSession("a"))).ids_T)
    assert proxy.calls == 3


async def test_what_never_mends_ends_by_the_deadline(proxy: Proxy, engine: SglangEngine) -> None:
    proxy.faults = ["503"] * 1000
    with pytest.raises(EngineError, match="no completion within 2 s"):
        await engine.generate(PROMPT, SAMPLING, EpisodeSession("a"))
    assert proxy.calls < 20, "it must wait longer each time"
    proxy.faults = ["cut"] * 1000
    with pytest.raises(EngineError, match="cut off"):
        await engine.generate(PROMPT, SAMPLING, EpisodeSession("a"))
    proxy.faults = ["late"]
    with pytest.raises(EngineError, match="no completion within 2 s; the server is alive but slow"):
        await engine.generate(PROMPT, SAMPLING, EpisodeSession("a"))


async def test_a_pause_does_not_count_for_a_request(engine: SglangEngine) -> None:
    sampling = Sampling(max_new_tokens=100)
    running = asyncio.ensure_future(engine.generate(PROMPT, sampling, EpisodeSession("a")))
    await asyncio.sleep(0.02)
    await engine.pause()
    waiting = asyncio.ensure_future(engine.generate(PROMPT, SAMPLING, EpisodeSession("b")))
    await asyncio.sleep(3)
    assert not waiting.done()
    await engine.resume()
    assert len((await running).ids_T) == 100
    assert len((await waiting).ids_T)
    assert 2.9 < engine.paused_s < 30


async def test_a_server_that_dies_in_a_pause_is_noticed(
    proxy: Proxy, engine: SglangEngine, server: Server
) -> None:
    await engine.pause()
    waiting = asyncio.ensure_future(engine.generate(PROMPT, SAMPLING, EpisodeSession("a")))
    await asyncio.sleep(0.1)
    proxy.target = "http://127.0.0.1:1"
    try:
        await engine.resume()
        async with asyncio.timeout(10):
            with pytest.raises(EngineError, match="/continue_generation"):
                await waiting
    finally:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            await http.post("/continue_generation", json={})
