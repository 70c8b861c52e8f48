"""The real server behind a proxy that misbehaves: each fault is one EngineError, or is overcome."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import Server
from agentrl.errors import EngineError
from agentrl.types import Sampling, Session

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

PROMPT = list(range(300, 340))
SAMPLING = Sampling(max_tokens=6, stop_ids=frozenset({0, 2}))


class Proxy:
    """Forwards everything; `faults` are what happens to the next calls of `/generate`."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.faults: list[str] = []
        self.calls = 0
        self.url = ""

    async def run(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self.http:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", self.handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield
            await runner.cleanup()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        fault = ""
        if request.path == "/generate":
            self.calls += 1
            fault = self.faults.pop(0) if self.faults else ""
        if fault in ("500", "503"):
            return web.json_response({"error": {"message": "made up"}}, status=int(fault))
        if fault == "late":
            await asyncio.sleep(3)
        body = await request.read()
        url = f"{self.target}{request.path_qs}"
        head = {"Content-Type": "application/json"}
        async with self.http.request(request.method, url, data=body, headers=head) as theirs:
            answer, status = await theirs.read(), theirs.status
        if fault == "cut":
            assert request.transport is not None
            request.transport.close()
        elif fault:
            answer = json.dumps(CHANGES[fault](json.loads(answer))).encode()
        return web.Response(body=answer, status=status, content_type="application/json")


def _id(answer: dict[str, Any]) -> dict[str, Any]:
    answer["output_ids"][0] += 1
    return answer


def _logprob(answer: dict[str, Any]) -> dict[str, Any]:
    answer["meta_info"]["output_token_logprobs"].append([-1.0, 5, None])
    return answer


def _prompt(answer: dict[str, Any]) -> dict[str, Any]:
    answer["output_ids"] = [*PROMPT, *answer["output_ids"]]
    rows = [[-1.0, i, None] for i in PROMPT]
    answer["meta_info"]["output_token_logprobs"][:0] = rows
    return answer


def _dropped(answer: dict[str, Any]) -> dict[str, Any]:
    del answer["meta_info"]["weight_versions"]
    return answer


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "wrong id": _id,
    "one logprob too many": _logprob,
    "prompt in front": _prompt,
    "no versions": _dropped,
}


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
        ("wrong id", "they must be those of the sampled ids"),
        ("one logprob too many", "they must be those of the sampled ids"),
        ("prompt in front", "without the prompt"),
        ("no versions", "a router between may drop fields"),
    ],
)
async def test_a_fault_is_one_sentence(
    proxy: Proxy, engine: SglangEngine, fault: str, said: str
) -> None:
    proxy.faults = [fault]
    with pytest.raises(EngineError) as caught:
        await engine.generate(PROMPT, SAMPLING, Session("a"))
    assert said in str(caught.value)
    assert len((await engine.generate(PROMPT, SAMPLING, Session("a"))).ids_T)


@pytest.mark.parametrize("fault", ["503", "cut"])
async def test_what_another_try_mends_is_tried_again(
    proxy: Proxy, engine: SglangEngine, fault: str
) -> None:
    proxy.faults = [fault, fault]
    assert len((await engine.generate(PROMPT, SAMPLING, Session("a"))).ids_T)
    assert proxy.calls == 3


async def test_what_never_mends_ends_by_the_deadline(proxy: Proxy, engine: SglangEngine) -> None:
    proxy.faults = ["503"] * 1000
    with pytest.raises(EngineError, match="no completion within 2 s"):
        await engine.generate(PROMPT, SAMPLING, Session("a"))
    assert proxy.calls < 20, "it must wait longer each time"
    proxy.faults = ["cut"] * 1000
    with pytest.raises(EngineError, match="cut off"):
        await engine.generate(PROMPT, SAMPLING, Session("a"))
    proxy.faults = ["late"]
    with pytest.raises(EngineError, match="no completion within 2 s; the server is alive but slow"):
        await engine.generate(PROMPT, SAMPLING, Session("a"))
