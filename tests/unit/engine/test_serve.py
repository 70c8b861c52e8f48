"""The server of the local engine: keys, and tensors from strangers."""

import base64
import io
import os
import pickle
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.multiprocessing import reductions

from agentrl.engine.local.engine import LocalEngine
from agentrl.engine.local.models.load import load_model
from agentrl.engine.serve.app import App
from agentrl.engine.serve.listening import bind
from agentrl.engine.serve.serving import Serving
from agentrl.engine.serve.unpickle import read_tensors
from agentrl.engine.servers.control import Keys
from agentrl.engine.sglang.weights import buckets
from agentrl.errors import ConfigError, EngineError
from agentrl.tokens import Tokenizer

NAMED = [("a", torch.arange(6.0).reshape(2, 3)), ("b", torch.tensor([1.5], dtype=torch.bfloat16))]


def packed(content: object) -> str:
    return base64.b64encode(pickle.dumps(content)).decode()


class Call:
    """Pickles as a call, as whoever means harm would."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


def test_tensors_arrive_in_both_forms() -> None:
    made = [read_tensors(bucket.packed(), "flattened_bucket") for bucket in buckets(NAMED)]
    parameter = nn.Parameter(NAMED[0][1].T)
    for found in ([pair for some in made for pair in some], read_tensors(packed(NAMED), None)):
        assert [name for name, _ in found] == ["a", "b"]
        for (_, got), (_, sent) in zip(found, NAMED, strict=True):
            assert got.dtype == sent.dtype
            assert torch.equal(got, sent)
    ((_, got),) = read_tensors(packed([("c", parameter)]), None)
    assert torch.equal(got, parameter)


def test_nothing_else_is_called(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    call = Call(os.mkdir, str(trace))
    storage = io.BytesIO()
    torch.save(call, storage)
    inside = Call(cast("Any", torch.storage)._load_from_bytes, storage.getvalue())
    shared = Call(cast("Any", reductions).rebuild_tensor, 1)
    for harm, said in (
        (call, "posix.mkdir"),
        (shared, "send them by value"),
        (inside, "cannot be read"),
        (Call(getattr, "a", "upper"), "builtins.getattr"),
    ):
        with pytest.raises(EngineError, match=said):
            read_tensors(packed([("a", harm)]), None)
    assert not trace.exists()


@pytest.mark.parametrize("content", [5, [5], [("a", 5)], [(5, NAMED[0][1])], {"a": 5}, [("a",)]])
@pytest.mark.parametrize("load_format", [None, "flattened_bucket"])
def test_what_is_no_tensors_is_an_error(content: object, load_format: str | None) -> None:
    with pytest.raises(EngineError, match="the tensors"):
        read_tensors(packed(content), load_format)


@settings(max_examples=60)
@given(st.data())
def test_damaged_bytes_are_tensors_or_an_error(data: st.DataObject) -> None:
    raw = bytearray(base64.b64decode(next(iter(buckets(NAMED))).packed()))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    text = base64.b64encode(raw).decode()[: data.draw(st.integers(len(raw) // 2, 2 * len(raw)))]
    try:
        found = read_tensors(text, "flattened_bucket")
    except EngineError:
        return
    assert all(isinstance(tensor, torch.Tensor) for _, tensor in found)


@pytest.fixture
async def url(tiny_folder: Path) -> AsyncIterator[str]:
    """A server with two keys."""
    model = load_model(tiny_folder)
    engine = LocalEngine(model)
    serving = Serving(engine, model, Tokenizer.load(tiny_folder))
    app = App(serving, tiny_folder, Keys("user", "admin")).make()
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    with bind("127.0.0.1", 0) as listening:
        await web.SockSite(runner, listening).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        await runner.cleanup()
    await engine.aclose()


async def test_each_key_opens_its_own_routes(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        for path, key in (
            ("/model_info", "user"),
            ("/pause_generation", "admin"),
            ("/continue_generation", "admin"),
        ):
            for given in ("user", "admin", "", "other"):
                head = {"Authorization": f"Bearer {given}"} if given else {}
                status = (await http.post(path, json={}, headers=head)).status_code
                assert status == (200 if given == key else 401)
        assert (await http.get("/health")).status_code == 200
        nowhere = await http.get("/bogus", headers={"Authorization": "Bearer user"})
        assert (nowhere.status_code, nowhere.json()) == (404, {"detail": "Not Found"})


def test_a_taken_port_is_said_in_one_sentence() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^port {port} of 127\.0\.0\.1 cannot be used"):
            bind("127.0.0.1", port)
