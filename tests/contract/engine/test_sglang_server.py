"""What is sent to a server, what comes back, and the traps between: the same for each server."""

import asyncio
import socket
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from agentrl.engine.config import EngineConfig, SglangConfig
from agentrl.engine.servers.check import check_server
from agentrl.engine.servers.client import new_rid
from agentrl.engine.sglang.client import request_body
from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.server import RESERVED, start
from agentrl.engine.sglang.weights import (
    BroadcastTransport,
    DiskTransport,
    TensorTransport,
    Transport,
    buckets,
)
from agentrl.errors import ConfigError, EngineError
from agentrl.tokens import Tokenizer
from agentrl.trainer.logprobs import sequence_logprobs
from agentrl.trainer.weights import ModelWeights
from agentrl.types import Completion, EpisodeSession, Sampling, StopReason
from tests.contract.engine.conftest import Target, wait_until_sampled

pytestmark = pytest.mark.timeout(300)

CONTEXT = 2048 - RESERVED
PROMPT = list(range(300, 340))
STOP, END_OF_TEXT = 2, 0
JSON = {"Content-Type": "application/json"}


def gap(model: PreTrainedModel, completion: Completion, temperature: float = 1.0) -> float:
    ids = PROMPT + completion.ids_T.tolist()
    ours = np.array(sequence_logprobs(model, ids, temperature))[len(PROMPT) - 1 :]
    return float(np.abs(ours - completion.logprobs_T).max())


def change(model: PreTrainedModel, factor: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)


def prefer(model: PreTrainedModel, token: int) -> None:
    """Make the model sample one token always: one dimension is the same everywhere, and its."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter[0] = 0.0
        weight = model.get_parameter("model.embed_tokens.weight")
        weight[:, 0] = 1.0
        weight[token, 0] = 5.0
        model.get_parameter("model.norm.weight").zero_()[0] = 50.0


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
async def test_logprobs_are_the_models_after_the_temperature(
    engine: SglangEngine, model: PreTrainedModel, temperature: float
) -> None:
    sampling = Sampling(max_new_tokens=24, temperature=temperature)
    completion = await engine.generate(PROMPT, sampling, EpisodeSession("a"))
    assert gap(model, completion, temperature) < 1e-4
    assert completion.versions_T.tolist() == [0] * len(completion.ids_T)


async def test_a_greedy_completion_is_the_most_likely_one(
    engine: SglangEngine, model: PreTrainedModel
) -> None:
    completion = await engine.generate(
        PROMPT, Sampling(max_new_tokens=4, temperature=0), EpisodeSession("a")
    )
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    assert completion.ids_T[0] == int(logits.argmax())
    assert gap(model, completion) < 1e-4


async def test_the_stop_token_is_the_last_id(engine: SglangEngine) -> None:
    sampling = Sampling(max_new_tokens=200, stop_ids=frozenset(range(0, 768, 3)))
    completion = await engine.generate(PROMPT, sampling, EpisodeSession("a"))
    ids = completion.ids_T.tolist()
    assert completion.stop_reason is StopReason.STOP
    assert ids[-1] % 3 == 0
    assert not any(i % 3 == 0 for i in ids[:-1])


async def test_sampling_goes_on_past_a_stop_token_of_the_servers_own(
    engine: SglangEngine, model: PreTrainedModel
) -> None:
    prefer(model, END_OF_TEXT)
    await engine.update_weights(ModelWeights(model), 1)
    sampling = Sampling(max_new_tokens=5, stop_ids=frozenset({STOP}))
    completion = await engine.generate(PROMPT, sampling, EpisodeSession("a"))
    assert completion.ids_T.tolist() == [END_OF_TEXT] * 5
    assert completion.stop_reason is StopReason.LENGTH
    assert engine.slots[0].stats.requests == 5


async def test_a_session_finds_its_prefix_cached(engine: SglangEngine) -> None:
    session, sampling = EpisodeSession("a"), Sampling(max_new_tokens=8)
    first = await engine.generate(PROMPT, sampling, session)
    ids = [*PROMPT, *first.ids_T.tolist(), 5, 6]
    second = await engine.generate(ids, sampling, session)
    assert second.cached_tokens >= len(PROMPT) + 6
    health = await engine.health()
    # More, where the server stopped at a token of its own and was asked to go on.
    assert health.cached_tokens >= first.cached_tokens + second.cached_tokens
    assert health.sampled_tokens == len(first.ids_T) + len(second.ids_T)


async def test_the_context_holds_exactly_what_it_says(engine: SglangEngine) -> None:
    for missing in (1, 4):
        ids = [5] * (engine.context_length - missing)
        completion = await engine.generate(ids, Sampling(max_new_tokens=100), EpisodeSession("a"))
        assert len(completion.ids_T) == missing
    with pytest.raises(EngineError, match="holds 2040"):
        await engine.generate([5] * 2040, Sampling(max_new_tokens=1), EpisodeSession("a"))


@pytest.mark.parametrize("bad", [-1, 768, 99_999_999])
async def test_an_id_outside_the_vocabulary_never_reaches_the_server(
    engine: SglangEngine, bad: int
) -> None:
    with pytest.raises(EngineError, match=f"got id {bad}, expected 0 to 767"):
        await engine.generate([5, bad], Sampling(max_new_tokens=1), EpisodeSession("a"))
    assert (await engine.health()).alive


@pytest.mark.parametrize("kind", [TensorTransport, DiskTransport, BroadcastTransport])
async def test_new_weights_are_sampled_under_their_version(
    engine: SglangEngine, model: PreTrainedModel, target: Target, kind: type[Transport]
) -> None:
    if kind is BroadcastTransport and not target.broadcasts:
        pytest.skip("this server takes no broadcasts")
    other = SglangEngine([target.url], vocab_size=768, context_length=CONTEXT, transport=kind())
    await other.start(ready_s=60, weights=ModelWeights(model))
    try:
        await other.generate(PROMPT, Sampling(max_new_tokens=4), EpisodeSession("a"))
        change(model, 1.05)
        await other.update_weights(ModelWeights(model), 1)
        completion = await other.generate(PROMPT, Sampling(max_new_tokens=16), EpisodeSession("a"))
        assert completion.cached_tokens == 0, "keys and values of the old weights were used"
        assert set(completion.versions_T.tolist()) == {1}
        assert gap(model, completion) < 1e-4
        with pytest.raises(EngineError, match="expected one above 1"):
            await other.update_weights(ModelWeights(model), 1)
        await other.update_weights(ModelWeights(model), 2)
    finally:
        await other.aclose()


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


async def test_a_version_across_an_update_is_known_token_by_token(
    engine: SglangEngine, model: PreTrainedModel
) -> None:
    running = asyncio.ensure_future(
        engine.generate(PROMPT, Sampling(max_new_tokens=1000), EpisodeSession("a"))
    )
    await wait_until_sampled(engine.slots[0].url)
    await engine.pause()
    change(model, 1.01)
    await engine.update_weights(ModelWeights(model), 1)
    await engine.resume()
    versions = (await running).versions_T.tolist()
    assert versions == sorted(versions)
    assert set(versions) == {0, 1}


async def test_weights_of_another_shape_change_nothing(
    engine: SglangEngine, model: PreTrainedModel
) -> None:
    before = await engine.generate(
        PROMPT, Sampling(max_new_tokens=8, temperature=0), EpisodeSession("a")
    )

    class Short:
        def named_tensors(self) -> object:
            return list(ModelWeights(model).named_tensors())[1:]

    with pytest.raises(EngineError, match=r"differ from the model's in model\.embed_tokens"):
        await engine.update_weights(Short(), 1)  # type: ignore[arg-type]  # a list will do
    after = await engine.generate(
        PROMPT, Sampling(max_new_tokens=8, temperature=0), EpisodeSession("a")
    )
    assert after.ids_T.tolist() == before.ids_T.tolist()
    assert after.versions_T.tolist() == [0] * len(after.ids_T)


async def test_an_abort_returns_what_there_is(engine: SglangEngine) -> None:
    session = EpisodeSession("a")
    running = asyncio.ensure_future(engine.generate(PROMPT, Sampling(max_new_tokens=1900), session))
    other = asyncio.ensure_future(
        engine.generate(PROMPT, Sampling(max_new_tokens=500), EpisodeSession("b"))
    )
    await wait_until_sampled(engine.slots[0].url, 2)
    await engine.abort(session)
    completion = await running
    assert completion.stop_reason is StopReason.ABORT
    assert 0 < len(completion.ids_T) < 1900
    assert len(completion.logprobs_T) == len(completion.ids_T)
    assert (await other).stop_reason is StopReason.LENGTH


async def test_an_abort_while_paused_is_not_lost(engine: SglangEngine) -> None:
    running = asyncio.ensure_future(
        engine.generate(PROMPT, Sampling(max_new_tokens=1900), EpisodeSession("a"))
    )
    await wait_until_sampled(engine.slots[0].url)
    await engine.pause()
    waiting = asyncio.ensure_future(
        engine.generate(PROMPT, Sampling(max_new_tokens=5), EpisodeSession("b"))
    )
    await asyncio.sleep(0.1)
    assert await engine.slots[0].control.healthy(), "a paused server is no sick one"
    await engine.abort(EpisodeSession("b"))
    assert len((await waiting).ids_T) == 0
    await engine.resume()
    await engine.abort(EpisodeSession("a"))
    assert (await running).stop_reason is StopReason.ABORT


async def test_a_cancelled_request_ends_on_the_server_too(
    engine: SglangEngine, target: Target
) -> None:
    running = asyncio.ensure_future(
        engine.generate(PROMPT, Sampling(max_new_tokens=1900), EpisodeSession("a"))
    )
    await wait_until_sampled(target.url)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with httpx.AsyncClient(base_url=target.url, timeout=10) as http:
        for _ in range(50):
            loads = (await http.get("/v1/loads")).json()["loads"]
            if not any(load["num_running_reqs"] for load in loads):
                return
            await asyncio.sleep(0.2)
    pytest.fail("the server went on sampling for nobody")


async def test_a_request_that_takes_too_long_says_that_the_server_lives(target: Target) -> None:
    slow = SglangEngine([target.url], vocab_size=768, context_length=CONTEXT, timeout_s=0.3)
    await slow.start(ready_s=60)
    with pytest.raises(EngineError, match=r"no completion within 0\.3 s; the server is alive"):
        await slow.generate(PROMPT, Sampling(max_new_tokens=1900), EpisodeSession("a"))
    await slow.aclose()


async def test_the_server_knows_every_key_that_is_sent(target: Target) -> None:
    sampling = Sampling(max_new_tokens=2, stop_ids=frozenset({STOP}))
    body = request_body(PROMPT, sampling, new_rid())
    async with httpx.AsyncClient(base_url=target.url, headers=JSON) as http:
        good = await http.post("/generate", content=body)
        bad = await http.post("/generate", content=body.replace(b"max_new_tokens", b"max_tokens"))
    assert good.status_code == 200
    assert bad.status_code == 400
    assert "max_tokens" in bad.text


async def test_a_fit_server_passes_every_check(
    engine: SglangEngine, model: PreTrainedModel, tiny_folder: Path
) -> None:
    rows = await check_server(
        engine.slots[0],
        Tokenizer.load(tiny_folder),
        vocab_size=768,
        reference=lambda ids, temperature: sequence_logprobs(model, list(ids), temperature),
    )
    assert [row.name for row in rows if not row.ok] == []
    assert len(rows) == 8


async def test_a_server_with_other_weights_fails_the_check(
    engine: SglangEngine, model: PreTrainedModel, tiny_folder: Path
) -> None:
    change(model, 1.2)
    rows = await check_server(
        engine.slots[0],
        Tokenizer.load(tiny_folder),
        vocab_size=768,
        reference=lambda ids, temperature: sequence_logprobs(model, list(ids), temperature),
    )
    assert [row.name for row in rows if not row.ok] == ["logprobs", "temperature"]


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
