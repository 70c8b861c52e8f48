"""The wire itself: bodies sent by hand, the same for each server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from transformers import PreTrainedModel

from agentrl.engine.servers.client import new_rid
from agentrl.engine.servers.control import PauseMode
from agentrl.engine.sglang.engine import SglangEngine
from agentrl.engine.sglang.teacher import TeacherServer
from agentrl.engine.sglang.weights import buckets
from agentrl.errors import ConfigError, RunError
from agentrl.tokens import Tokenizer
from agentrl.trainer.logprobs import sequence_logprobs
from agentrl.trainer.weights import ModelWeights
from tests.contract.engine.conftest import Target, wait_until_sampled
from tests.unit.trainer.batches import batch_of, segment

pytestmark = pytest.mark.timeout(300)

PROMPT = list(range(300, 340))


class Wire:
    """One server, by hand."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.url = str(http.base_url)

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self._http.post(path, json=body)

    async def said(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self._http.get(path)).json()
        return found

    async def generate(self, num: int, rid: str = "", **sampling: Any) -> dict[str, Any]:
        parameters = {"max_new_tokens": num, "ignore_eos": True, **sampling}
        response = await self.post(
            "/generate",
            input_ids=PROMPT,
            sampling_params=parameters,
            rid=rid or new_rid(),
            return_logprob=True,
        )
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def refuses(self, path: str, **body: Any) -> str:
        """The text of a 400, after which the server is well."""
        response = await self.post(path, **body)
        assert response.status_code == 400, response.text
        assert len((await self.generate(2))["output_ids"]) == 2
        return response.text


@pytest.fixture
async def wire(target: Target, engine: SglangEngine) -> AsyncIterator[Wire]:
    """A server with the model's weights as version 0, left unpaused."""
    async with httpx.AsyncClient(base_url=target.url, timeout=60) as http:
        made = Wire(http)
        yield made
        await made.post("/continue_generation")


async def test_the_id_that_stopped_is_named_and_kept(wire: Wire, tiny_folder: Path) -> None:
    stops = list(range(0, 768, 3))
    found = await wire.generate(500, stop_token_ids=stops, ignore_eos=False)
    last = found["output_ids"][-1]
    meta = found["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": last}
    tokenizer = Tokenizer.load(tiny_folder)
    assert tokenizer.eos_token is not None
    assert last % 3 == 0 or last == tokenizer.eos_token.id
    rows = meta["output_token_logprobs"]
    assert [row[1] for row in rows] == found["output_ids"]
    assert meta["output_token_logprobs_length"] == meta["completion_tokens"] == len(rows)
    assert meta["prompt_tokens"] == len(PROMPT)
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": len(rows)}]
    shown = found["output_ids"][:-1]
    assert found["text"] == tokenizer.decode(shown, skip_special=True)
    # `ignore_eos` is about all stop ids.
    assert len((await wire.generate(40, stop_token_ids=stops))["output_ids"]) == 40


async def test_what_cannot_be_served_is_refused(wire: Wire) -> None:
    asked = {"sampling_params": {"max_new_tokens": 4}}
    assert "bogus" in await wire.refuses(
        "/generate", input_ids=PROMPT, sampling_params={"bogus": 1}
    )
    assert "message" in await wire.refuses("/generate", input_ids=[], **asked)
    assert "message" in await wire.refuses("/generate", **asked)
    assert "2048" in await wire.refuses("/generate", input_ids=[5] * 2100, **asked)
    assert "2048" in await wire.refuses(
        "/generate", input_ids=PROMPT, sampling_params={"max_new_tokens": 2040}
    )
    assert "emperature" in await wire.refuses(
        "/generate", input_ids=PROMPT, sampling_params={"temperature": -1.0}
    )
    await wire.refuses("/generate", input_ids=["a"], **asked)
    await wire.refuses("/generate", input_ids=PROMPT, sampling_params=5)
    await wire.refuses("/pause_generation", mode="bogus")
    await wire.refuses("/get_weights_by_name", name="bogus")


@pytest.mark.parametrize("bad", [-1, 768, 99_999_999])
async def test_ids_outside_the_vocabulary_do_no_harm(wire: Wire, target: Target, bad: int) -> None:
    if not target.checks_ids:
        pytest.skip("they would end this server")
    said = await wire.refuses("/generate", input_ids=[5, bad], sampling_params={})
    assert f"got id {bad}, expected 0 to 767" in said


async def test_a_prompt_is_scored_at_temperature_1_and_nothing_is_sampled(
    wire: Wire, model: PreTrainedModel
) -> None:
    meant = sequence_logprobs(model, PROMPT)
    for start, temperature in ((0, 1.0), (25, 0.5)):
        response = await wire.post(
            "/generate",
            input_ids=PROMPT,
            sampling_params={"max_new_tokens": 0, "temperature": temperature},
            rid=new_rid(),
            return_logprob=True,
            logprob_start_len=start,
        )
        found = response.json()
        meta = found["meta_info"]
        assert (found["output_ids"], meta["output_token_logprobs"]) == ([], [])
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(PROMPT), 0)
        assert (meta["finish_reason"]["type"], meta["weight_version"]) == ("length", "0")
        first, *rows = meta["input_token_logprobs"]
        assert first[0] is None
        assert [first[1], *(row[1] for row in rows)] == PROMPT[start:]
        assert [row[0] for row in rows] == pytest.approx(meant[start:], abs=1e-4)


async def test_our_own_server_scores_or_samples(wire: Wire, target: Target) -> None:
    if not target.checks_ids:
        pytest.skip("this server does both at once")
    for most, start, asked in ((4, 0, True), (0, -1, True), (0, 0, False)):
        said = await wire.refuses(
            "/generate",
            input_ids=PROMPT,
            sampling_params={"max_new_tokens": most},
            return_logprob=asked,
            logprob_start_len=start,
        )
        assert "scores a prompt or samples" in said
    scores = {"sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    said = await wire.refuses("/generate", input_ids=PROMPT, logprob_start_len=40, **scores)
    assert "got logprob_start_len 40 for 40 tokens" in said


async def test_a_server_can_be_a_teacher(
    engine: SglangEngine, target: Target, model: PreTrainedModel, tiny_folder: Path
) -> None:
    teacher = TeacherServer(target.url, Tokenizer.load(tiny_folder), timeout_s=60)
    taken = engine.slots[0].info.longest_prompt - 1 if engine.slots[0].info else 0
    await teacher.check(taken)
    with pytest.raises(ConfigError, match=f"takes {taken:,} tokens, but the policy's episodes"):
        await teacher.check(taken + 1)
    # As many tokens as it takes, the last of them the vocabulary's last.
    half = taken // 2
    batch = batch_of([segment([3] * half, [([4], [5] * (taken - half - 2)), ([6], [])])])
    batch.ids_N[-1] = 767
    found_N = (await asyncio.to_thread(teacher.with_reference, batch)).reference_N
    assert found_N is not None
    meant = np.array([0, *sequence_logprobs(model, batch.ids_N.tolist())]) * batch.mask_N
    np.testing.assert_allclose(found_N, meant, atol=1e-4)
    await engine.update_weights(ModelWeights(model), 1)
    with pytest.raises(RunError, match="changed from version 0 to 1"):
        await asyncio.to_thread(teacher.with_reference, batch)


async def test_a_seed_decides_what_is_sampled(wire: Wire, target: Target) -> None:
    if not target.seeds:
        pytest.skip("this server has no use for seeds")
    first, again, other = [
        (await wire.generate(30, sampling_seed=seed))["output_ids"] for seed in (7, 7, 8)
    ]
    assert first == again != other


async def test_a_part_of_the_distribution_is_given_or_refused(wire: Wire, target: Target) -> None:
    sampling: dict[str, Any] = {"top_p": 0.5}
    if target.truncates:
        assert (await wire.generate(4, **sampling))["output_ids"]
    else:
        said = await wire.refuses("/generate", input_ids=PROMPT, sampling_params=sampling)
        assert "top_p: got 0.5" in said


async def test_prefixes_are_shared_within_a_key(wire: Wire) -> None:
    async def cached(key: str | None) -> int:
        asked = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}, "extra_key": key}
        found: int = (await wire.post("/generate", **asked)).json()["meta_info"]["cached_tokens"]
        return found

    await wire.post("/flush_cache?timeout=5")
    numbers = [await cached(key) for key in (None, "1", "1", None, "2")]
    assert [number > 0 for number in numbers] == [False, False, True, True, False]


async def test_the_likeliest_id_has_the_logprob_of_the_whole_distribution(wire: Wire) -> None:
    ways: list[dict[str, Any]] = [{"top_k": 1}, {"temperature": 0.0}]
    one, other = [
        (await wire.generate(1, **way))["meta_info"]["output_token_logprobs"][0] for way in ways
    ]
    assert one[1] == other[1]
    assert one[0] == pytest.approx(other[0], abs=1e-5)
    assert one[0] < -0.01


async def test_an_abort_ends_one_request(wire: Wire) -> None:
    rids = [new_rid() for _ in range(2)]
    first, second = [asyncio.ensure_future(wire.generate(1000, rid)) for rid in rids]
    await wait_until_sampled(wire.url, 2)
    assert "Duplicate request ID" in (
        await wire.refuses("/generate", input_ids=PROMPT, rid=rids[0], sampling_params={})
    )
    assert (await wire.post("/abort_request", rid=new_rid())).status_code == 200
    assert (await wire.post("/abort_request", rid=rids[0])).status_code == 200
    found = await first
    assert found["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(found["output_ids"]) < 1000
    assert (await second)["meta_info"]["finish_reason"] == {"type": "length", "length": 1000}


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
async def test_a_pause_does_to_requests_and_the_cache_what_its_mode_says(
    wire: Wire, mode: PauseMode
) -> None:
    running = asyncio.ensure_future(wire.generate(1000))
    await wait_until_sampled(wire.url)
    assert (await wire.post("/flush_cache")).status_code == 400
    assert (await wire.post("/pause_generation", mode=mode)).status_code == 200
    waiting = asyncio.ensure_future(wire.generate(3))
    await asyncio.wait([running], timeout=30 if mode == "abort" else 0.2)
    assert running.done() is (mode == "abort")
    assert (await wire.post("/flush_cache")).status_code == (400 if mode == "in_place" else 200)
    await wire.post("/update_weight_version", new_version="1", abort_all_requests=False)
    assert (await wire.said("/model_info"))["weight_version"] == "1"
    assert not waiting.done()
    assert (await wire.post("/continue_generation")).status_code == 200
    found = await running
    spans = found["meta_info"]["weight_versions"]
    if mode == "abort":
        assert found["meta_info"]["finish_reason"]["type"] == "abort"
        assert [span["version"] for span in spans] == ["0"]
    else:
        assert len(found["output_ids"]) == 1000
        assert [span["version"] for span in spans] == ["0", "1"]
        assert spans[0]["end"] == spans[1]["start"]
    assert len((await waiting)["output_ids"]) == 3


async def test_tensors_are_taken_within_a_session_only(wire: Wire, model: PreTrainedModel) -> None:
    (bucket,) = buckets(list(ModelWeights(model).named_tensors()))
    body = {"serialized_named_tensors": [bucket.packed()], "load_format": "flattened_bucket"}
    said = await wire.refuses("/update_weights_from_tensor", **body)
    assert "between begin_weight_update() and end_weight_update()" in said
    assert (await wire.post("/begin_weight_update")).json()["success"]
    assert "already open" in (await wire.post("/begin_weight_update")).text
    assert (await wire.post("/update_weights_from_tensor", **body)).json()["success"]
    assert (await wire.post("/end_weight_update")).json()["success"]


async def test_old_keys_and_values_stay_if_the_cache_is_not_flushed(
    wire: Wire, model: PreTrainedModel
) -> None:
    (bucket,) = buckets(list(ModelWeights(model).named_tensors()))
    body = {"serialized_named_tensors": [bucket.packed()], "load_format": "flattened_bucket"}
    await wire.generate(3)
    for flush in (False, True):
        await wire.post("/begin_weight_update")
        done = await wire.post("/update_weights_from_tensor", **body, flush_cache=flush)
        assert done.status_code == 200
        await wire.post("/end_weight_update")
        cached = (await wire.generate(3))["meta_info"]["cached_tokens"]
        assert (cached == 0) is flush
    # Frozen requests need theirs: the answer is 400, but the weights are there.
    running = asyncio.ensure_future(wire.generate(1000))
    await wait_until_sampled(wire.url)
    await wire.post("/pause_generation", mode="in_place")
    await wire.post("/begin_weight_update")
    done = await wire.post("/update_weights_from_tensor", **body, weight_version="7")
    assert done.status_code == 400
    assert "Weights were updated" in done.text
    await wire.post("/end_weight_update")
    await wire.post("/continue_generation")
    spans = (await running)["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["0", "7"]


async def test_a_folder_without_weights_changes_nothing(wire: Wire, tmp_path: Path) -> None:
    rows = {"name": "model.norm.weight", "truncate_size": 5}
    before = (await wire.post("/get_weights_by_name", **rows)).json()
    assert len(before) == 5
    said = await wire.refuses("/update_weights_from_disk", model_path=str(tmp_path / "bogus"))
    assert '"success":false' in said.replace(" ", "")
    assert (await wire.post("/get_weights_by_name", **rows)).json() == before


async def test_a_text_is_tokenized_and_answered(wire: Wire, tiny_folder: Path) -> None:
    tokenizer = Tokenizer.load(tiny_folder)
    text = "Compute 7." + "".join(tokenizer.added_tokens)
    found = await wire.post("/tokenize", model="", prompt=text, add_special_tokens=False)
    assert found.json()["tokens"] == tokenizer.encode(text, specials=True)
    answer = await wire.post("/generate", text=text, sampling_params={"max_new_tokens": 2})
    assert answer.json()["meta_info"]["prompt_tokens"] == len(found.json()["tokens"])
