"""What is asked of servers of different versions, by an endpoint that answers as they did."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from aiohttp import web
from torch import Tensor

from agentrl.engine.servers.control import Keys
from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.weights import DiskTransport, TensorTransport, Transport
from agentrl.errors import EngineError

WEIGHT = torch.arange(12.0).reshape(4, 3)
INFO = {
    "weight_version": "default",
    "model_path": "/m",
    "dtype": "float32",
    "tp_size": 2,
    "dp_size": 1,
    "max_total_num_tokens": 1000,
    "max_req_input_len": 900,
}
SINCE_0_5_21 = ("/begin_weight_update", "/end_weight_update")
DONE = {"success": True, "message": "Succeeded"}


class Weights:
    def __init__(self, weight: Tensor = WEIGHT) -> None:
        self.weight = weight

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight


class Recorder:
    """A server's control plane, as far as its version has it."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.calls: list[tuple[str, Any]] = []

    async def handle(self, request: web.Request) -> web.Response:
        if self.version == "0.5.20" and request.path in SINCE_0_5_21:
            return web.json_response({"detail": "Not Found"}, status=404)
        if request.path == "/server_info":
            return web.json_response(INFO | {"version": self.version})
        self.calls.append((request.path, await request.json()))
        if request.path == "/get_weights_by_name":
            return web.json_response(WEIGHT.numpy().tolist())
        return web.json_response(DONE)

    @property
    def paths(self) -> Sequence[str]:
        return [path for path, _ in self.calls]


@asynccontextmanager
async def serving(version: str) -> AsyncGenerator[tuple[Recorder, Control]]:
    recorder = Recorder(version)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", recorder.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    control = Control(f"http://127.0.0.1:{runner.addresses[0][1]}", Keys())
    try:
        yield recorder, control
    finally:
        await control.aclose()
        await runner.cleanup()


@pytest.mark.parametrize("version", ["0.5.20", "0.5.21", "0.5.23"])
@pytest.mark.parametrize("flush", [True, False])
async def test_weights_go_in_a_session_where_there_is_one(version: str, flush: bool) -> None:
    async with serving(version) as (recorder, control):
        info = await control.info()
        assert await TensorTransport().publish([(control, info)], Weights(), 3, flush=flush) == [
            None
        ]
    update = ["/update_weights_from_tensor"]
    if version != "0.5.20":
        update = ["/begin_weight_update", *update, "/end_weight_update"]
    assert recorder.paths == [*update, "/get_weights_by_name", "/update_weight_version"]
    body = dict(recorder.calls)["/update_weights_from_tensor"]
    assert len(body["serialized_named_tensors"]) == 2, "one for each rank"
    assert body["flush_cache"] is flush
    last = recorder.calls[-1][1]
    assert last == {"new_version": "3", "abort_all_requests": False}


async def test_a_version_is_never_given_to_other_weights(tmp_path: Any) -> None:
    async with serving("0.5.23") as (recorder, control):
        target = (control, await control.info())
        transports: Sequence[Transport] = [TensorTransport(), DiskTransport(tmp_path)]
        for transport in transports:
            assert await transport.publish([target], Weights(), 1) == [None]
            assert await transport.publish([target], Weights(), 1) == [None]
            before = list(recorder.paths)
            with pytest.raises(EngineError, match="those of version 1 no longer"):
                await transport.publish([target], Weights(WEIGHT + 1e-6), 1)
            assert recorder.paths == before
            await transport.aclose()


async def test_a_version_is_not_named_if_the_weights_change_while_they_are_sent() -> None:
    weights = Weights(WEIGHT.clone())

    class Slow(TensorTransport):
        async def send(self, *args: Any, **flags: Any) -> Sequence[EngineError | None]:
            failures = await super().send(*args, **flags)
            weights.weight += 1
            return failures

    async with serving("0.5.23") as (recorder, control):
        target = (control, await control.info())
        transport = Slow()
        with pytest.raises(EngineError, match="has other numbers in weight"):
            raise (await transport.publish([target], weights, 1))[0] or AssertionError
        weights.weight -= 1
        with pytest.raises(EngineError, match="those of version 1 no longer"):
            await transport.publish([target], weights, 1)
    assert "/update_weight_version" not in recorder.paths


@pytest.mark.parametrize("version", ["0.5.16", "0.4.9.post2", "0.6.0", "1.0", "main"])
async def test_a_version_outside_the_range_is_named(version: str) -> None:
    async with serving(version) as (_, control):
        with pytest.raises(EngineError, match=r"expected 0\.5\.20 or newer.* older than 0\.6"):
            await control.info()
