"""From the bytes that a server sent to a sealed completion, or to one sentence.

A server's answer is checked, not trusted: what does not fit the request, or itself, is an
EngineError. What is trained on are `output_ids`; the text that comes with them is never read.
"""

import base64
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from agentrl.engine.experts import ExpertChannels, expert_channels
from agentrl.engine.servers.answer import (
    Json,
    RequestShape,
    parse_json_body,
    read_token_versions,
    require_list,
    require_mapping,
)
from agentrl.errors import EngineError
from agentrl.tokens.hash_chain import seal
from agentrl.types import Completion, StopReason

_LEAST, _MOST = -1e6, 0.1
"""Between these a logprob lies, however it was rounded; in place of -inf a server may write the
lowest number of its format."""


def parse(body: bytes, asked: RequestShape) -> tuple[Completion, int | None]:
    """The completion, and the id that stopped it if one did.

    Raises EngineError if ids, logprobs, counts, versions or the reason for the end disagree.
    """
    answer = require_mapping(parse_json_body(body), "answer")
    meta = require_mapping(answer.get("meta_info"), "meta_info")
    ids = require_list(answer.get("output_ids"), "output_ids")
    reason, stopped_by = _read_stop_reason(meta.get("finish_reason"), ids, asked)
    if reason is StopReason.ABORT and not ids:
        return seal([], [], [], reason), None  # nothing else is said of what never began
    logprobs = _read_logprob_column(
        require_list(meta.get("output_token_logprobs"), "output_token_logprobs"), ids
    )
    _check_token_counts(meta, ids, asked, aborted=reason is StopReason.ABORT)
    spans = require_list(meta.get("weight_versions"), "weight_versions")
    cached = meta.get("cached_tokens")
    completion = seal(
        cast("list[int]", ids),
        logprobs,
        read_token_versions(spans, len(ids)),
        reason,
        cached_tokens=cached if isinstance(cached, int) else 0,
        **_read_routed_experts(meta, len(ids), asked),
    )
    asked.check_ids(completion)
    return completion, stopped_by


def parse_scores(
    body: bytes, ids: Sequence[int], start: int, vocab_size: int
) -> tuple[NDArray[np.float32], str]:
    """The logprobs of the ids behind the first `start`, and the version of the weights.

    Raises EngineError if they are not finite, or those of other ids.
    """
    answer = require_mapping(parse_json_body(body), "answer")
    meta = require_mapping(answer.get("meta_info"), "meta_info")
    finish = require_mapping(meta.get("finish_reason"), "finish_reason")
    if finish.get("type") == "abort":
        raise EngineError(f"the server gave up {len(ids)} tokens: {finish.get('message')}")
    rows = require_list(meta.get("input_token_logprobs"), "input_token_logprobs")
    wanted = list(ids[start:])
    # SGLang writes 0 for the last id of its vocabulary.
    written = [0 if token == vocab_size - 1 else token for token in wanted]
    logprobs_T = _read_logprob_column(rows[1:], wanted, written)  # the first one is unknown
    _check_token_counts(meta, [], RequestShape(len(ids), 0, vocab_size), aborted=False)
    sound_T = (logprobs_T > _LEAST) & (logprobs_T < _MOST)  # neither is true of what is no number
    if not sound_T.all():
        at = int(sound_T.argmin())
        raise EngineError(
            f"the server's logprob of token {start + at} is {logprobs_T[at]:g}, expected a finite "
            "number of at most 0; its model computes no numbers there"
        )
    return logprobs_T, str(meta.get("weight_version"))


def _read_stop_reason(
    value: object, ids: list[object], asked: RequestShape
) -> tuple[StopReason, int | None]:
    finish = require_mapping(value, "finish_reason")
    kind = finish.get("type")
    if kind == "abort":
        return StopReason.ABORT, None
    if kind == "stop":
        matched = finish.get("matched")
        if not isinstance(matched, int) or not ids or matched != ids[-1]:
            last = ids[-1] if ids else None
            raise EngineError(
                f"the server stopped at {matched!r}, but the last id is {last}; the stop token "
                "that was sampled must be the last id"
            )
        return StopReason.STOP, matched
    if kind == "length":
        if len(ids) < asked.max_new_tokens:
            raise EngineError(
                f"the server cut a completion at {len(ids)} of {asked.max_new_tokens} tokens, "
                "since its cache holds no more; raise engine.sglang.kv_tokens or lower "
                "rollout.max_new_tokens"
            )
        return StopReason.LENGTH, None
    raise EngineError(f"the server ended with {kind!r}, expected stop, length or abort")


def _read_logprob_column(rows: list[object], *ids: Sequence[object]) -> NDArray[np.float32]:
    """The first column of `[logprob, id, text]`, where the second one is one of `ids`."""
    try:
        pairs = cast("list[list[object]]", rows)
        values, theirs = [row[0] for row in pairs], [row[1] for row in pairs]
    except (TypeError, IndexError, KeyError) as error:
        raise EngineError("the server's logprobs are not rows of logprob, id and text") from error
    if theirs not in ids:
        raise EngineError(
            f"the server has {len(ids[0])} ids with the logprobs of {len(theirs)}"
            + (" others" if len(ids[0]) == len(theirs) else "")
            + "; they must be those of the same ids"
        )
    if None in values:
        raise EngineError("the server sent no logprob for a token, as of one that is not finite")
    try:
        with np.errstate(over="ignore"):
            return np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise EngineError(f"the server sent a logprob that is no number ({error})") from error


def _check_token_counts(
    meta: Json, ids: list[object], asked: RequestShape, *, aborted: bool
) -> None:
    said = "prompt_tokens" in meta or not aborted  # what was aborted in the queue does not say
    if said and meta.get("prompt_tokens") != asked.num_prompt:
        raise EngineError(
            f"the server computed a prompt of {meta.get('prompt_tokens')} tokens, but "
            f"{asked.num_prompt} were sent"
        )
    if meta.get("completion_tokens") != len(ids) or len(ids) > asked.max_new_tokens:
        raise EngineError(
            f"the server sent {len(ids)} ids for a completion of {meta.get('completion_tokens')} "
            f"tokens, at most {asked.max_new_tokens} were asked for; it must send what it sampled, "
            "without the prompt"
        )


def _read_routed_experts(meta: Json, num: int, asked: RequestShape) -> ExpertChannels:
    """What the server recorded of all tokens but the last, 32-bit numbers in base64."""
    if not asked.experts:
        return {}
    text, rows = meta.get("routed_experts"), asked.num_prompt + num - 1
    try:
        values = np.frombuffer(base64.b64decode(str(text or ""), validate=True), dtype="<i4")
        layers = values.reshape(rows, max(1, values.size // (rows * asked.experts)), asked.experts)
    except ValueError as error:
        raise EngineError(
            f"the server recorded no experts for {rows} tokens ({error}); start it with "
            "--enable-return-routed-experts"
        ) from error
    return expert_channels(layers, asked.num_prompt)
