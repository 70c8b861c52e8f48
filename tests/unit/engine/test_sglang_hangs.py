"""What waits for a server that hangs is let go within the deadline, whatever it waits for."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.engine.sglang.engine import SglangEngine
from agentrl.errors import EngineError
from agentrl.types import EpisodeSession, Sampling
from tests.renaming import Renaming
from tests.unit.engine.test_sglang_contract import INFO, Weights

DEADLINE_S = 0.6


class Hanging:
    """A server's endpoints, which answer nothing from some moment on."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()

    async def answer(self, request: web.Request) -> web.Response:
        await self.answers.wait()
        if request.path == "/generate":
            await asyncio.sleep(600.0)
        return web.json_response(INFO | {"version": "0.5.23", "success": True})


@pytest.fixture
async def server() -> AsyncIterator[tuple[Hanging, SglangEngine]]:
    hanging = Hanging()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", hanging.answer)
    async with TestServer(app) as served:
        engine = SglangEngine(
            [str(served.make_url(""))],
            vocab_size=12,
            context_length=900,
            transport=Renaming(),
            deadline_s=DEADLINE_S,
        )
        await engine.start(ready_s=5.0, weights=Weights())
        yield hanging, engine
        hanging.answers.set()
        await engine.aclose()


@pytest.mark.parametrize("what", ["request", "pause", "weights"])
async def test_nobody_waits_longer_than_the_deadline(
    server: tuple[Hanging, SglangEngine], what: str
) -> None:
    hanging, engine = server
    if what == "weights":
        await engine.pause()
    hanging.answers.clear()
    started = time.monotonic()
    if what == "pause":
        await engine.pause()  # of all that answer
    else:
        with pytest.raises(EngineError, match=r"no sign of life|did not do"):
            await (
                engine.update_weights(Weights(), 1)
                if what == "weights"
                else engine.generate([1], Sampling(max_new_tokens=4), EpisodeSession("a"))
            )
    assert time.monotonic() - started < 8 * DEADLINE_S  # a call has 60 s, a request 600 s
    assert engine.slots[0].state != "serving"
