"""What only servers of SGLang's protocol have: buckets, sessions, keys of a body."""

import socket
from pathlib import Path

import httpx
import pytest
from transformers import PreTrainedModel

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.servers.client import new_rid
from agentrl.engine.sglang.client import request_body
from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import start
from agentrl.engine.sglang.weights import buckets
from agentrl.errors import ConfigError
from agentrl.trainer.weights import ModelWeights
from agentrl.types import EpisodeSession, Sampling
from tests.contract.engine.conftest import Target
from tests.contract.engine.test_servers import PROMPT, STOP, change, gap

pytestmark = pytest.mark.timeout(300)

JSON = {"Content-Type": "application/json"}


async def test_the_server_takes_many_buckets(engine: SglangEngine, model: PreTrainedModel) -> None:
    change(model, 0.9)
    control = engine.slots[0].control
    assert isinstance(control, Control)
    named = list(ModelWeights(model).named_tensors())
    made = list(buckets(named, most_bytes=100_000))
    assert len(made) > 3
    await control.begin_update()
    for bucket in made:
        body = {
            "serialized_named_tensors": [bucket.packed()],
            "load_format": "flattened_bucket",
        }
        await control.send("/update_weights_from_tensor", body, timeout_s=60)
    await control.end_update()
    completion = await engine.generate(PROMPT, Sampling(max_new_tokens=8), EpisodeSession("a"))
    assert gap(model, completion) < 1e-4


async def test_an_update_session_that_a_dead_trainer_left_open_is_closed(
    engine: SglangEngine, model: PreTrainedModel
) -> None:
    control = engine.slots[0].control
    assert isinstance(control, Control)
    await control.begin_update()
    await engine.update_weights(ModelWeights(model), 1)
    assert engine.version == 1


async def test_the_server_knows_every_key_that_is_sent(target: Target) -> None:
    sampling = Sampling(max_new_tokens=2, stop_ids=frozenset({STOP}))
    body = request_body(PROMPT, sampling, new_rid())
    async with httpx.AsyncClient(base_url=target.url, headers=JSON) as http:
        good = await http.post("/generate", content=body)
        bad = await http.post("/generate", content=body.replace(b"max_new_tokens", b"max_tokens"))
    assert good.status_code == 200
    assert bad.status_code == 400
    assert "max_tokens" in bad.text


@pytest.mark.sglang
def test_what_cannot_start_is_said_at_once(
    sglang_folder: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be used"):
            start(EngineConfig(), tiny_folder, tmp_path, port=port)
    config = EngineConfig(sglang=SglangConfig(extra_args="--log-level info --api-key=word"))
    with pytest.raises(ConfigError, match="--api-key cannot be given") as caught:
        start(config, tiny_folder, tmp_path)
    assert "word" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"memory does not suffice for SGLang: .* GB are free"):
        start(EngineConfig(sglang=SglangConfig(kv_tokens=10**9)), tiny_folder, tmp_path)
