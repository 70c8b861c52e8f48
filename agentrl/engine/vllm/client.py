"""One server's `/inference/v1/generate`, and what of its answer is a completion."""

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from agentrl.engine.servers.answer import (
    Json,
    RequestShape,
    parse_json_body,
    read_token_versions,
    require_list,
    require_mapping,
)
from agentrl.engine.servers.client import ServerClient
from agentrl.engine.vllm.control import KEY
from agentrl.engine.vllm.install import VLLM
from agentrl.errors import EngineError
from agentrl.tokens.hash_chain import seal
from agentrl.types import Completion, Sampling, StopReason

_COLDEST: Final = 0.01
"""vLLM samples at no lower temperature, but for 0."""
_TRUTH: Final = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "ignore_eos": True, "detokenize": False}
"""Nothing is truncated, and nothing stops but what is asked to."""


def request_body(
    ids: Sequence[int], sampling: Sampling, rid: str, cache_key: str | None = None
) -> bytes:
    """The body of one request; prefixes are reused among requests of one `cache_key`."""
    parameters: dict[str, object] = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "stop_token_ids": sorted(sampling.stop_ids),
        "logprobs": 0,  # of the sampled token alone
        **_TRUTH,
    }
    body = {"request_id": rid, "token_ids": ids, "sampling_params": parameters}
    return orjson.dumps(body if cache_key is None else body | {"cache_salt": cache_key})


class VllmClient(ServerClient):
    """Connections to one server. Every call runs on the event loop of the first one."""

    title = VLLM.title
    path = "/inference/v1/generate"
    key_hint = f"set {KEY} to its key"
    gone = "EngineCore encountered an issue"

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        rid: str,
        cache_key: str | None = None,
        adapter: str | None = None,
    ) -> tuple[Completion, int | None]:
        """One completion of checked ids, and the id that stopped it; adapters are not known."""
        if 0 < sampling.temperature < _COLDEST:
            raise EngineError(
                f"vLLM samples at a temperature of 0 or at least {_COLDEST:g}, got "
                f"{sampling.temperature:g}"
            )
        answer = await self.post(request_body(ids, sampling, rid, cache_key))
        return parse(answer, RequestShape(len(ids), sampling.max_new_tokens, self.vocab_size))


def parse(body: bytes, asked: RequestShape) -> tuple[Completion, int | None]:
    """The completion, and the id that stopped it if one did.

    Raises EngineError if ids, logprobs, counts, versions or the reason for the end disagree.
    """
    answer = require_mapping(parse_json_body(body), "answer")
    choices = require_list(answer.get("choices"), "choices") or [None]
    choice = require_mapping(choices[0], "choice")
    usage = require_mapping(answer.get("usage"), "usage")
    ids = cast("list[int]", require_list(choice.get("token_ids"), "token_ids"))
    reason, stopped_by = _read_stop_reason(choice, ids, asked)
    if usage.get("prompt_tokens") != asked.num_prompt or len(ids) > asked.max_new_tokens:
        raise EngineError(
            f"the server computed a prompt of {usage.get('prompt_tokens')} tokens and sent "
            f"{len(ids)} ids, but {asked.num_prompt} were sent and at most "
            f"{asked.max_new_tokens} asked for"
        )
    if reason is StopReason.ABORT and not ids:
        return seal([], [], [], reason), None  # nothing else is said of what never began
    details = usage.get("prompt_tokens_details")
    cached = require_mapping(details, "prompt_tokens_details").get("cached_tokens")
    completion = seal(
        ids,
        _read_logprobs(choice, ids),
        read_token_versions(
            require_list(choice.get("weight_versions"), "weight_versions"), len(ids)
        ),
        reason,
        cached_tokens=cached if isinstance(cached, int) else 0,
    )
    asked.check_ids(completion)
    return completion, stopped_by


def _read_stop_reason(
    choice: Json, ids: list[int], asked: RequestShape
) -> tuple[StopReason, int | None]:
    kind, matched = choice.get("finish_reason"), choice.get("stop_reason")
    if kind == "abort":
        return StopReason.ABORT, None
    if kind == "length" and len(ids) == asked.max_new_tokens:
        return StopReason.LENGTH, None
    if kind == "stop" and isinstance(matched, int) and ids and matched == ids[-1]:
        return StopReason.STOP, matched
    raise EngineError(
        f"the server ended with {kind!r} at {matched!r} after {len(ids)} of "
        f"{asked.max_new_tokens} tokens, expected the asked length, an abort, or a stop at the "
        "last id"
    )


def _read_logprobs(choice: Json, ids: list[int]) -> NDArray[np.float32]:
    content = require_mapping(choice.get("logprobs"), "logprobs").get("content")
    rows = [require_mapping(row, "logprob") for row in require_list(content, "logprobs")]
    if [row.get("token_id") for row in rows] != ids:
        raise EngineError(
            f"the server has {len(ids)} ids with the logprobs of {len(rows)}; they must be those "
            "of the same ids"
        )
    try:
        return np.array([row.get("logprob") for row in rows], dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise EngineError(f"the server sent a logprob that is no number ({error})") from error
