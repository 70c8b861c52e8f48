"""What a server may answer, without a server: right answers, wrong ones, and anything at all."""

from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.servers.answer import RequestShape, error_text
from agentrl.engine.sglang.response import parse, parse_scores
from agentrl.errors import EngineError
from agentrl.types import StopReason

ASKED = RequestShape(num_prompt=3, max_new_tokens=3, vocab_size=100)


def answer(**changes: object) -> bytes:
    """A right answer of three tokens, as the real server gave it, with keys of it changed."""
    meta: dict[str, Any] = {
        "id": "0" * 32,
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": 3,
        "weight_version": "8",
        "input_token_logprobs": [],
        "output_token_logprobs": [[-1.5, 5, None], [-0.5, 6, None], [-2.0, 7, None]],
        "completion_tokens": 3,
        "cached_tokens": 2,
        "weight_versions": [
            {"version": "7", "start": 0, "end": 2},
            {"version": "8", "start": 2, "end": 3},
        ],
    }
    body: dict[str, Any] = {"text": "ignored", "output_ids": [5, 6, 7], "meta_info": meta}
    for key, value in changes.items():
        (body if key in body else meta)[key] = value
    return orjson.dumps(body)


def test_a_right_answer_is_sealed() -> None:
    completion, stopped_by = parse(answer(), ASKED)
    assert completion.ids_T.tolist() == [5, 6, 7]
    assert completion.logprobs_T.tolist() == [-1.5, -0.5, -2.0]
    assert completion.versions_T.tolist() == [7, 7, 8]
    assert completion.stop_reason is StopReason.LENGTH
    assert completion.cached_tokens == 2
    assert stopped_by is None
    assert completion.digest


def test_a_stop_token_is_the_last_id() -> None:
    completion, stopped_by = parse(answer(finish_reason={"type": "stop", "matched": 7}), ASKED)
    assert completion.stop_reason is StopReason.STOP
    assert stopped_by == 7


def test_recorded_experts_stand_at_the_tokens_that_they_predict() -> None:
    """Two layers of three experts for all tokens but the last: five of three and three."""
    asked = replace(ASKED, experts=3)
    recorded = np.arange(5 * 2 * 3, dtype="<i4").reshape(5, 2, 3)
    body = answer(routed_experts=b64encode(recorded.tobytes()).decode())
    completion, _ = parse(body, asked)
    np.testing.assert_array_equal(completion.channels["routed_experts"], recorded[2:])
    prompt = completion.prompt_channels["routed_experts"]
    np.testing.assert_array_equal(prompt[1:], recorded[:2])
    assert not prompt[0].any()
    assert not parse(body, ASKED)[0].channels
    for wrong in (None, "", "%%", b64encode(recorded[:3].tobytes()).decode()):
        with pytest.raises(EngineError, match="--enable-return-routed-experts"):
            parse(answer(routed_experts=wrong), asked)


def test_an_abort_keeps_what_there_is() -> None:
    finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    completion, _ = parse(answer(finish_reason=finish), ASKED)
    assert completion.stop_reason is StopReason.ABORT
    assert len(completion.ids_T) == 3
    nothing = answer(
        finish_reason=finish,
        output_ids=[],
        output_token_logprobs=[],
        completion_tokens=0,
        weight_versions=[],
    )
    assert len(parse(nothing, ASKED)[0].ids_T) == 0


TWO = [[-1.5, 5, None], [-0.5, 6, None]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output_token_logprobs": TWO}, "3 ids with the logprobs of 2"),
        ({"output_token_logprobs": [*TWO, TWO[0], TWO[0]]}, "3 ids with the logprobs of 4"),
        ({"output_token_logprobs": [*TWO, [-1.0, 9, None]]}, "logprobs of 3 others"),
        ({"output_token_logprobs": [*TWO, [None, 7, None]]}, "no logprob for a token"),
        ({"output_token_logprobs": [*TWO, ["x", 7, None]]}, "a logprob that is no number"),
        ({"output_token_logprobs": [*TWO, [0.5, 7, None]]}, "logprob of token 2 is 0.5"),
        ({"output_token_logprobs": [1, 2, 3]}, "not rows of logprob, id and text"),
        (
            {"output_token_logprobs": None},
            "is a NoneType, expected a list; talk to the server itself",
        ),
        ({"prompt_tokens": 4}, "a prompt of 4 tokens, but 3 were sent"),
        ({"completion_tokens": 6}, "3 ids for a completion of 6 tokens"),
        ({"finish_reason": {"type": "stop", "matched": 6}}, "stopped at 6, but the last id is 7"),
        ({"finish_reason": {"type": "stop", "matched": "\n"}}, "but the last id is 7"),
        ({"finish_reason": {"type": "eos"}}, "ended with 'eos', expected stop, length or abort"),
        ({"finish_reason": None}, "finish_reason is a NoneType"),
        ({"weight_versions": [{"version": "7", "start": 0, "end": 2}]}, "cover 2 of 3 tokens"),
        ({"weight_versions": [{"version": "7", "start": 0, "end": 4}]}, "cover 0 of 3 tokens"),
        (
            {"weight_versions": [{"version": "default", "start": 0, "end": 3}]},
            "version 'default', expected a number",
        ),
        ({"meta_info": None}, "meta_info is a NoneType"),
        ({"output_ids": None}, "output_ids is a NoneType"),
    ],
)
def test_a_wrong_answer_is_said_in_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineError) as caught:
        parse(answer(**changes), ASKED)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_length_that_the_cache_clipped_is_seen() -> None:
    with pytest.raises(EngineError, match="cut a completion at 3 of 9 tokens"):
        parse(answer(), RequestShape(num_prompt=3, max_new_tokens=9, vocab_size=100))


def test_an_id_that_the_model_does_not_have_is_seen() -> None:
    with pytest.raises(EngineError, match="sampled id 7, expected 0 to 6"):
        parse(answer(), RequestShape(num_prompt=3, max_new_tokens=3, vocab_size=7))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
KEYS = ("output_ids", "meta_info", *orjson.loads(answer())["meta_info"])


@given(st.sampled_from(KEYS), JSON)
def test_anything_at_all_is_a_completion_or_an_engine_error(key: str, value: object) -> None:
    with suppress(EngineError):
        parse(answer(**{key: value}), ASKED)


@given(st.binary(max_size=20))
def test_bytes_that_are_no_answer_are_an_engine_error(body: bytes) -> None:
    with pytest.raises(EngineError):
        parse(body, ASKED)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"The input is too long."}}', "400: The input is too long"),
        (b'{"error":"unknown field `bogus`"}', "400: unknown field `bogus`"),
        (b'{"object":"error","message":"The request queue is full.","code":503}', "queue is full"),
        (b'{"detail":"Not Found"}', "400: Not Found"),
        (b'{"success":false,"message":"already open"}', "400: already open"),
        (b"<html>Bad gateway</html>", "400: <html>Bad gateway</html>"),
        (b"", "400 without a message"),
    ],
)
def test_every_shape_of_an_error_is_read(body: bytes, said: str) -> None:
    assert said in error_text(400, body)


IDS = [4, 99, 6, 7]
ROWS: list[list[object]] = [[None, 99, None], [-0.5, 6, None], [-2.0, 7, None]]


def scored(**changes: object) -> bytes:
    """What the real server says of the ids behind the first two of `IDS`."""
    nothing: dict[str, Any] = {
        "output_ids": [],
        "finish_reason": {"type": "length", "length": 0},
        "prompt_tokens": 4,
        "completion_tokens": 0,
        "input_token_logprobs": ROWS,
        "output_token_logprobs": [],
        "weight_versions": [],
    }
    return answer(**(nothing | changes))


def test_a_scored_prompt_has_a_logprob_for_each_id_but_the_first() -> None:
    logprobs_T, version = parse_scores(scored(), IDS, 2, 100)
    assert logprobs_T.tolist() == [-0.5, -2.0]
    assert version == "8"
    whole = [[None, 4, None], [-1.0, 99, None], *ROWS[1:]]
    assert parse_scores(scored(input_token_logprobs=whole), IDS, 1, 200)[0][0] == -1.0


def test_the_last_id_of_a_vocabulary_may_be_called_0() -> None:
    whole = [[None, 4, None], [-1.0, 0, None], *ROWS[1:]]
    assert parse_scores(scored(input_token_logprobs=whole), IDS, 1, 100)[0][0] == -1.0
    with pytest.raises(EngineError, match="logprobs of 3 others"):
        parse_scores(scored(input_token_logprobs=whole), IDS, 1, 101)


def changed(place: int, row: object) -> dict[str, object]:
    return {"input_token_logprobs": [*ROWS[:place], row, *ROWS[place + 1 :]]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input_token_logprobs": ROWS[:2]}, "2 ids with the logprobs of 1;"),
        ({"input_token_logprobs": [*ROWS, ROWS[1]]}, "2 ids with the logprobs of 3;"),
        ({"input_token_logprobs": []}, "2 ids with the logprobs of 0;"),
        ({"input_token_logprobs": [[None, 4, None], *ROWS]}, "2 ids with the logprobs of 3;"),
        (changed(2, [-2.0, 8, None]), "2 ids with the logprobs of 2 others"),
        (changed(1, [None, 6, None]), "no logprob for a token, as of one that is not finite"),
        (changed(1, ["x", 6, None]), "a logprob that is no number"),
        (changed(1, [0.5, 6, None]), "logprob of token 2 is 0.5, expected a finite number"),
        (changed(2, [-3.4e38, 7, None]), "logprob of token 3 is -3.4e+38, expected a finite"),
        (changed(2, [-1e300, 7, None]), "logprob of token 3 is -inf, expected a finite number"),
        (changed(1, 5), "not rows of logprob, id and text"),
        (
            {"input_token_logprobs": None},
            "is a NoneType, expected a list; talk to the server itself",
        ),
        ({"prompt_tokens": 3}, "a prompt of 3 tokens, but 4 were sent"),
        ({"completion_tokens": 1}, "0 ids for a completion of 1 tokens"),
        ({"finish_reason": {"type": "abort", "message": "full"}}, "gave up 4 tokens: full"),
        ({"finish_reason": None}, "finish_reason is a NoneType"),
        ({"meta_info": [1]}, "meta_info is a list"),
    ],
)
def test_wrong_scores_are_said_in_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineError) as caught:
        parse_scores(scored(**changes), IDS, 2, 100)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.sampled_from([*KEYS, "input_token_logprobs"]), JSON)
def test_anything_at_all_is_scores_or_an_engine_error(key: str, value: object) -> None:
    with suppress(EngineError):
        logprobs_T, _ = parse_scores(scored(**{key: value}), IDS, 2, 100)
        assert np.isfinite(logprobs_T).all()
