"""What only vLLM's servers have: a key for all, heads that are padded, one address for agentrl."""

# pyright: reportUnknownVariableType=false
# (safetensors is not fully typed)

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest
from safetensors.torch import save_file
from transformers import PreTrainedModel

from agentrl.engine.config import EngineConfig, VllmConfig
from agentrl.engine.servers.answer import RequestShape
from agentrl.engine.servers.client import new_rid
from agentrl.engine.servers.process import Server
from agentrl.engine.vllm.client import parse, request_body
from agentrl.engine.vllm.control import VllmControl
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.server import start
from agentrl.engine.vllm.weights import FileTransport
from agentrl.errors import ConfigError, EngineError
from agentrl.trainer.weights import ModelWeights
from agentrl.types import EpisodeSession, Sampling
from tests.contract.engine.conftest import READY_S
from tests.contract.engine.test_servers import PROMPT, STOP, change, gap

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

SAMPLING = Sampling(max_new_tokens=6, stop_ids=frozenset({STOP}))
BODY = request_body(PROMPT, SAMPLING, new_rid())


@pytest.fixture
async def engine(vllm_server: Server, model: PreTrainedModel) -> AsyncIterator[VllmEngine]:
    made = VllmEngine(
        [vllm_server.url], vocab_size=768, context_length=2048, transport=FileTransport()
    )
    await made.start(ready_s=60, weights=ModelWeights(model))
    yield made
    await made.aclose()


async def test_nobody_else_is_let_in(engine: VllmEngine, vllm_server: Server) -> None:
    key = vllm_server.keys.user
    async with httpx.AsyncClient(base_url=vllm_server.url, timeout=30) as http:
        for path in ("/inference/v1/generate", "/pause", "/collective_rpc", "/metrics"):
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                assert (await http.post(path, json={}, headers=headers)).status_code == 401
        assert (await http.get("/health")).status_code == 200
        headers = vllm_server.keys.headers() | {"Content-Type": "application/json"}
        good = await http.post("/inference/v1/generate", content=BODY, headers=headers)
    parse(good.content, RequestShape(len(PROMPT), 6, 768))
    assert key not in vllm_server.log.read_text()
    lines = (process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"]))
    assert not any(key in argument for line in lines for argument in line)


async def test_a_model_with_fewer_tensors_is_refused_by_the_server(
    engine: VllmEngine, model: PreTrainedModel, tmp_path: Path
) -> None:
    control = engine.slots[0].control
    assert isinstance(control, VllmControl)
    named = dict(ModelWeights(model).named_tensors())
    lacking = {name: t.detach().contiguous() for name, t in named.items() if "norm" not in name}
    save_file(lacking, tmp_path / "model.safetensors")
    (missing,) = await control.call_workers("agentrl_load", str(tmp_path))
    assert missing == sorted(named.keys() - lacking.keys())
    change(model, 1.05)
    await engine.update_weights(ModelWeights(model), 1)  # whole again
    completion = await engine.generate(PROMPT, SAMPLING, EpisodeSession("a"))
    assert gap(model, completion) < 1e-4


async def test_a_temperature_that_the_server_would_raise_is_refused(engine: VllmEngine) -> None:
    with pytest.raises(EngineError, match=r"at a temperature of 0 or at least 0\.01, got 0\.001"):
        await engine.generate(
            PROMPT, Sampling(max_new_tokens=2, temperature=1e-3), EpisodeSession("a")
        )


@pytest.mark.nightly
async def test_a_server_that_was_killed_comes_back_with_the_weights_of_now(
    vllm_folder: Path, tiny_folder: Path, tmp_path: Path, model: PreTrainedModel
) -> None:
    server = start(EngineConfig(vllm=VllmConfig(kv_tokens=4096)), tiny_folder, tmp_path)
    engine = VllmEngine(
        [server], vocab_size=768, context_length=2048, transport=FileTransport(), deadline_s=60
    )
    try:
        await engine.start(ready_s=READY_S, weights=ModelWeights(model))
        change(model, 1.05)
        await engine.update_weights(ModelWeights(model), 1)
        sampling = Sampling(max_new_tokens=1500)
        running = asyncio.ensure_future(engine.generate(PROMPT, sampling, EpisodeSession("a")))
        await asyncio.sleep(1)
        server.kill()
        completion = await running
        assert len(completion.ids_T) == 1500
        assert set(completion.versions_T.tolist()) == {1}
        assert gap(model, completion) < 1e-4
    finally:
        await engine.aclose()


def test_what_cannot_start_is_said_at_once(
    vllm_folder: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be used"):
            start(EngineConfig(), tiny_folder, tmp_path, port=port)
    config = EngineConfig(vllm=VllmConfig(extra_args="--api-key=word"))
    with pytest.raises(ConfigError, match="--api-key cannot be given") as caught:
        start(config, tiny_folder, tmp_path)
    assert "word" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"memory does not suffice for vLLM: .* GB are free"):
        start(EngineConfig(vllm=VllmConfig(kv_tokens=10**9)), tiny_folder, tmp_path)
    with pytest.raises(ConfigError, match=r"engine\.share_device: a vLLM server keeps its memory"):
        start(EngineConfig(share_device=True), tiny_folder, tmp_path)


def test_a_server_that_dies_at_its_start_says_why_in_one_sentence(
    vllm_folder: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    config = EngineConfig(vllm=VllmConfig(extra_args="--quantization nonsense"))
    server = start(config, tiny_folder, tmp_path)
    with pytest.raises(ConfigError, match="the vLLM server did not start: ") as caught:
        asyncio.run(server.wait_ready(READY_S))
    assert "Unknown quantization method: nonsense" in str(caught.value)
    assert "\n" not in str(caught.value)
