"""What a vLLM server answers: a completion, or one sentence."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from agentrl.engine.servers.answer import RequestShape
from agentrl.engine.vllm.client import parse, request_body
from agentrl.errors import EngineError
from agentrl.types import Sampling, StopReason

ASKED = RequestShape(3, 2, 768)


def answer(change: Callable[[dict[str, Any]], object] = lambda _: None) -> bytes:
    rows = [{"token_id": 5, "logprob": -0.5, "rank": 1}, {"token_id": 2, "logprob": -1.0}]
    said: dict[str, Any] = {
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}},
        "choices": [
            {
                "token_ids": [5, 2],
                "finish_reason": "stop",
                "stop_reason": 2,
                "weight_versions": [
                    {"version": "3", "start": 0, "end": 1},
                    {"version": "4", "start": 1, "end": 2},
                ],
                "logprobs": {"content": rows},
            }
        ],
    }
    change(said)
    return orjson.dumps(said)


def top(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda said: said.update(changes)


def choice(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda said: said["choices"][0].update(changes)


def test_a_completion_has_its_ids_logprobs_and_versions() -> None:
    completion, stopped_by = parse(answer(), ASKED)
    assert completion.ids_T.tolist() == [5, 2]
    assert completion.logprobs_T.tolist() == [-0.5, -1.0]
    assert completion.versions_T.tolist() == [3, 4]
    assert (completion.stop_reason, stopped_by) == (StopReason.STOP, 2)
    assert completion.cached_tokens == 1


def test_what_was_aborted_before_it_began_is_empty() -> None:
    nothing: dict[str, object] = {
        "token_ids": [],
        "finish_reason": "abort",
        "weight_versions": None,
        "logprobs": None,
    }
    completion, _ = parse(answer(choice(**nothing)), ASKED)
    assert (completion.stop_reason, len(completion.ids_T)) == (StopReason.ABORT, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (choice(stop_reason=5), "ended with 'stop' at 5"),
        (choice(finish_reason="length", token_ids=[5]), "after 1 of 2 tokens"),
        (choice(finish_reason="error"), "ended with 'error'"),
        (choice(token_ids=[6, 2]), "must be those of the same ids"),
        (choice(weight_versions=None), "weight_versions is a NoneType, expected a list"),
        (choice(weight_versions=[]), "cover 0 of 2 tokens"),
        (choice(weight_versions=[{"version": "default", "start": 0, "end": 2}]), "'default'"),
        (choice(logprobs=None), "logprobs is a NoneType"),
        (top(usage={"prompt_tokens": 4}), "a prompt of 4 tokens"),
        (top(choices=[]), "choice is a NoneType"),
        (top(choices="x"), "choices is a str, expected a list"),
    ],
)
def test_a_wrong_answer_is_said_in_one_sentence(
    change: Callable[[dict[str, Any]], object], said: str
) -> None:
    with pytest.raises(EngineError) as caught:
        parse(answer(change), ASKED)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_id_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(EngineError, match="sampled id 5, expected 0 to 3"):
        parse(answer(), RequestShape(3, 2, 4))


def test_a_request_asks_for_the_whole_distribution() -> None:
    sampling = Sampling(max_new_tokens=7, temperature=0.5, stop_ids=frozenset({9, 2}))
    body = orjson.loads(request_body([1, 2], sampling, "r", "3"))
    assert body == {
        "request_id": "r",
        "token_ids": [1, 2],
        "cache_salt": "3",
        "sampling_params": {
            "max_tokens": 7, "temperature": 0.5, "stop_token_ids": [2, 9], "logprobs": 0,
            "top_p": 1.0, "top_k": 0, "min_p": 0.0, "ignore_eos": True, "detokenize": False,
        },
    }  # fmt: skip
