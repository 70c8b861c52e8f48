"""A teacher on a server: which rows are asked, where the answers go, and what ends a run."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from agentrl.engine.local.models.resolve import resolve_tokenizer
from agentrl.engine.sglang import teacher
from agentrl.engine.sglang.teacher import TeacherServer
from agentrl.errors import ConfigError, RunError
from agentrl.tokens import Tokenizer
from tests.threaded_app import serving
from tests.unit.trainer.batches import batch_of, segment

BATCH = batch_of(
    [segment([1, 2, 3], [([4, 5], [6, 7]), ([8], [9])]), segment([10], [([11, 12], [])])]
)


def score(ids: list[int], place: int) -> float:
    """A logprob that depends on the id, on its place and on the one before."""
    return -(ids[place] + place / 10 + ids[place - 1] / 100)


class Server:
    """Answers as SGLang does; `faults` are what happens to the next prompts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.info: dict[str, Any] = {"version": "0.5.23", "tp_size": 1, "dp_size": 1}
        self.info |= {"max_total_num_tokens": 999, "max_req_input_len": 100}
        self.faults: list[str] = []
        self.shift = self.running = self.most = 0
        self.bodies: list[dict[str, Any]] = []
        self.key = ""

    async def make(self) -> web.Application:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/server_info", self.tell)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/generate", self.generate)
        return app

    async def tell(self, request: web.Request) -> web.Response:
        return web.json_response(self.info)

    async def tokenize(self, request: web.Request) -> web.Response:
        ids = self.tokenizer.encode((await request.json())["prompt"], specials=True)
        return web.json_response({"tokens": [i + self.shift * (i == 77) for i in ids]})

    async def generate(self, request: web.Request) -> web.Response:
        body, fault = await request.json(), self.faults.pop(0) if self.faults else ""
        self.bodies.append(body)
        self.key = request.headers.get("Authorization", "")
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(5 if fault == "late" else 0.02)
        self.running -= 1
        if fault == "cut" and request.transport is not None:
            request.transport.close()
        if fault.isdecimal():
            return web.json_response({"error": {"message": "made up"}}, status=int(fault))
        ids, start = body["input_ids"], body["logprob_start_len"]
        rows = [[score(ids, place) if place > start else None, ids[place], None]
                for place in range(start, len(ids))]  # fmt: skip
        meta = {
            "finish_reason": {"type": "length", "length": 0},
            "prompt_tokens": len(ids),
            "completion_tokens": 0,
            "weight_version": "later" if fault == "changed" else "default",
            "input_token_logprobs": rows[:-1] if fault == "short" else rows,
        }
        return web.json_response({"text": "", "output_ids": [], "meta_info": meta})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve_tokenizer("tiny"))


@pytest.fixture
def server(tokenizer: Tokenizer) -> Server:
    return Server(tokenizer)


@pytest.fixture
def asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[TeacherServer]:
    monkeypatch.setattr(teacher, "_PAUSE_S", 0.01)
    monkeypatch.delenv("AGENTRL_SGLANG_KEY", raising=False)
    with serving(server.make) as url:
        yield TeacherServer(url, server.tokenizer, timeout_s=30)


def test_each_sampled_token_gets_the_logprob_of_its_place(
    server: Server, asked: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_SGLANG_KEY", "word")
    found_N = asked.with_reference(BATCH).reference_N
    assert found_N is not None
    assert found_N.dtype == np.float32
    for row in map(BATCH.row, range(BATCH.num_rows)):
        ids = BATCH.ids_N[row].tolist()
        meant = [score(ids, t) if BATCH.mask_N[row][t] else 0 for t in range(len(ids))]
        np.testing.assert_allclose(found_N[row], meant, rtol=1e-6)
    assert server.key == "Bearer word"
    sent = sorted(
        (body["input_ids"], body["logprob_start_len"], body["sampling_params"]["max_new_tokens"])
        for body in server.bodies
    )
    assert sent == [([1, 2, 3, 4, 5, 6, 7, 8], 2, 0), ([10, 11, 12], 0, 0)]


def test_rows_without_a_trained_token_are_not_asked(server: Server, asked: TeacherServer) -> None:
    masked = replace(BATCH, mask_N=np.zeros_like(BATCH.mask_N))
    found_N = asked.with_reference(masked).reference_N
    assert found_N is not None
    assert not found_N.any()
    assert server.bodies == []


def test_no_more_rows_than_agreed_are_asked_at_once(
    server: Server, asked: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "_AT_ONCE", 3)
    asked.with_reference(batch_of([segment([1], [([i], [])]) for i in range(2, 12)]))
    assert (len(server.bodies), server.most) == (10, 3)


@pytest.mark.parametrize("faults", [["503"] * 20, ["cut", "503", "cut", "cut"]])
def test_what_another_try_mends_is_tried_again(
    server: Server, asked: TeacherServer, faults: list[str]
) -> None:
    server.faults = [*faults]
    asked.with_reference(batch_of([segment([1], [([2], [])])]))
    assert len(server.bodies) == len(faults) + 1


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (["cut"] * 4, "cut off: Server disconnected; start it again, then resume the run"),
        (["late"], "did not score 2 tokens within 0.3 s; raise engine.timeout_s"),
        (["503"] * 999, "did not score 2 tokens within 0.3 s; raise engine.timeout_s"),
        (["400"], "answered 400: made up"),
        (["401"], "answered 401: made up; set AGENTRL_SGLANG_KEY to its API key"),
        (["short"], "1 ids with the logprobs of 0; they must be those of the same ids"),
        (["", "changed"], "changed from version default to later; give a server that nobody"),
    ],
)
def test_what_a_server_does_wrong_ends_the_run_in_one_sentence(
    server: Server, asked: TeacherServer, faults: list[str], said: str
) -> None:
    server.faults = [*faults]
    seconds = 0.3 if "0.3 s" in said else 30
    patient = TeacherServer(asked.url, server.tokenizer, timeout_s=seconds)
    rows = [segment([1], [([2], [])])] * (2 if "changed" in faults else 1)
    with pytest.raises(RunError) as caught:
        patient.with_reference(batch_of(rows))
    assert str(caught.value).startswith("trainer.reference: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_first_failure_ends_the_other_rows(server: Server, asked: TeacherServer) -> None:
    server.faults = ["400", "late"]
    with pytest.raises(RunError, match="answered 400"):
        asked.with_reference(BATCH)


def test_an_id_that_is_no_token_is_not_sent(server: Server, asked: TeacherServer) -> None:
    odd = replace(BATCH, ids_N=np.where(BATCH.ids_N == 8, 768, BATCH.ids_N))
    with pytest.raises(RunError, match="sampled id 768, which is no token"):
        asked.with_reference(odd)
    assert all(768 not in body["input_ids"] for body in server.bodies)


def test_a_server_that_is_gone_ends_the_run_in_one_sentence(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "_PAUSE_S", 0.01)
    with serving(server.make) as url:
        asked = TeacherServer(url, server.tokenizer, timeout_s=30)
        asyncio.run(asked.check(98))
    with pytest.raises(RunError, match=r"at http.* cut off: .*; start it again, then resume"):
        asked.with_reference(BATCH)
    with pytest.raises(ConfigError, match=r"at http.* did not do /server_info"):
        asyncio.run(asked.check(98))


def test_a_fit_server_passes_and_scores_a_trial(server: Server, asked: TeacherServer) -> None:
    asyncio.run(asked.check(98))
    assert [len(body["input_ids"]) for body in server.bodies] == [16]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_req_input_len": 99}, "takes 98 tokens, but the policy's episodes may have 99"),
        ({"shift": 1}, r"another vocabulary than the policy \('.*' is 78 there and 77 here\)"),
        ({"version": "0.4.1"}, "is SGLang 0.4.1, expected 0.5.20 or newer"),
        ({"max_req_input_len": "many"}, "this is no SGLang server"),
        ({"faults": ["short"]}, "15 ids with the logprobs of 14"),
    ],
)
def test_an_unfit_server_is_refused_in_one_sentence(
    server: Server, asked: TeacherServer, changes: dict[str, Any], said: str
) -> None:
    for key, value in changes.items():
        if key in server.info:
            server.info[key] = value
        else:
            setattr(server, key, value)
    with pytest.raises(ConfigError, match=rf"^trainer\.reference: .*{said}") as caught:
        asyncio.run(asked.check(99))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{}", "[]", '{"tokens": 5}', '{"tokens": [[1]]}', "nothing"])
def test_a_server_without_a_tokenizer_is_refused(
    server: Server, asked: TeacherServer, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tokenize(request: web.Request) -> web.Response:
        return web.Response(text=text)

    monkeypatch.setattr(server, "tokenize", tokenize)
    with serving(server.make) as url, pytest.raises(ConfigError, match="another vocabulary"):
        asyncio.run(TeacherServer(url, server.tokenizer, timeout_s=30).check(9))


@pytest.mark.parametrize("url", ["http://h:99999", "http://a..b:1", "http://a:1,http://b:1"])
def test_an_address_that_none_can_have_is_refused(url: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"^trainer\.reference: "):
        asyncio.run(TeacherServer(url, tokenizer, timeout_s=30).check(9))
