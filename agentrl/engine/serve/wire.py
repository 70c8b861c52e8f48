"""What clients send, checked, and what they get, in the shapes of SGLang's own server."""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from agentrl.errors import EngineError
from agentrl.types import Completion, StopReason

Json = dict[str, object]

_STRICT = ConfigDict(strict=True)
_ONLY: Mapping[str, Sequence[object]] = {"top_p": (1,), "repetition_penalty": (1,), "n": (1,)}
_ABSENT = (
    "stop", "stop_regex", "min_p", "frequency_penalty", "presence_penalty", "min_new_tokens",
    "json_schema", "regex", "ebnf", "structural_tag", "logit_bias", "custom_params", "beam_width",
    "watermark", "choice",
)  # fmt: skip
"""Settings of the protocol that ask for nothing when they are null, zero or empty."""
_BEYOND = (
    "stream", "top_logprobs_num", "token_ids_logprob", "lora_path", "return_hidden_states",
    "custom_logit_processor", "cache_salt", "image_data", "video_data", "audio_data",
)  # fmt: skip
_NO_MATTER = ("spaces_between_special_tokens", "stream_interval")


class SamplingParams(BaseModel):
    """The settings that the local engine has."""

    model_config = ConfigDict(strict=True, extra="allow")

    max_new_tokens: Annotated[int, Field(ge=0)] | None = 128
    """0 samples nothing: the prompt is scored."""
    temperature: float | None = 1.0
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = False
    skip_special_tokens: bool | None = True
    no_stop_trim: bool | None = False
    sampling_seed: int | None = None
    top_k: Literal[-1, 1, 1_073_741_824] | None = -1
    """1 takes the most likely id, the others any."""

    def check_others(self) -> None:
        """Raise EngineError for settings that the protocol has not, or this engine."""
        known = (*type(self).model_fields, *_ONLY, *_ABSENT, *_NO_MATTER)
        for key, value in (self.model_extra or {}).items():
            if key not in known:
                names = ", ".join(f"`{name}`" for name in known)
                raise EngineError(f"unknown field `{key}`, expected one of {names}")
            wanted = _ONLY.get(key, (value if key in _NO_MATTER else None,))
            if value and value not in wanted:
                raise EngineError(
                    f"{key}: got {value!r}, but the local engine samples from the whole "
                    "distribution until a stop token; leave it out"
                )


class GenerateRequest(BaseModel):
    """One request of `/generate`."""

    model_config = ConfigDict(strict=True, extra="allow")

    input_ids: list[int] | None = None
    text: str | None = None
    sampling_params: SamplingParams | None = None
    rid: str | None = None
    return_logprob: bool | None = False
    return_prompt_token_ids: bool | None = False
    logprob_start_len: Annotated[int, Field(ge=-1)] | None = None
    """From which token on a prompt that is scored has logprobs; -1: from none."""
    extra_key: str | None = None
    """Requests of one key share prefixes."""

    def check_others(self) -> None:
        """Raise EngineError for what changes an answer and cannot be had here."""
        for key in _BEYOND:
            if (self.model_extra or {}).get(key):
                raise EngineError(f"{key}: the local engine has no such thing; leave it out")
        most = 128 if self.sampling_params is None else self.sampling_params.max_new_tokens
        start = -1 if self.logprob_start_len is None else self.logprob_start_len
        if (most == 0) != (start >= 0 and bool(self.return_logprob)):
            raise EngineError(
                f"got max_new_tokens {most} and logprob_start_len {start}, but the local engine "
                "scores a prompt or samples: for scores send max_new_tokens 0, return_logprob true "
                "and a logprob_start_len of 0 or more"
            )


class Abort(BaseModel):
    """Whom to end."""

    model_config = _STRICT

    rid: str | None = None
    abort_all: bool = False


class Pause(BaseModel):
    """What happens to running requests."""

    model_config = _STRICT

    mode: Literal["abort", "in_place", "retract"] = "abort"


class Update(BaseModel):
    """What all weight updates have."""

    model_config = _STRICT

    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False


class DiskUpdate(Update):
    """Weights in a folder."""

    model_path: str


class TensorUpdate(Update):
    """Weights in the request."""

    serialized_named_tensors: list[str]
    load_format: Literal["flattened_bucket"] | None = None


class VersionUpdate(BaseModel):
    """A name for the weights that are loaded."""

    model_config = _STRICT

    new_version: str
    abort_all_requests: bool = True


class Weight(BaseModel):
    """Which rows of which weight."""

    model_config = _STRICT

    name: str
    truncate_size: int = 100


class Text(BaseModel):
    """What to tokenize."""

    model_config = _STRICT

    prompt: str
    add_special_tokens: bool = True


def answer(
    rid: str,
    num_prompt: int,
    completion: Completion,
    names: Sequence[str],
    *,
    text: str,
    limit: int,
    logprobs: bool,
    begun: float,
) -> Json:
    """The answer to `/generate`; `names` are those of the weight versions."""
    ids = completion.ids_T.tolist()
    meta: Json = {
        "id": rid,
        "finish_reason": _describe_finish_reason(completion, limit),
        "prompt_tokens": num_prompt,
        "completion_tokens": len(ids),
        "cached_tokens": completion.cached_tokens,
        "weight_version": names[-1],
        "weight_versions": _list_version_spans(completion.versions_T, names),
        "e2e_latency": time.monotonic() - begun,
    }
    if logprobs:
        rows = zip(completion.logprobs_T.tolist(), ids, strict=True)
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = [(logprob, token, None) for logprob, token in rows]
        meta["output_token_logprobs_length"] = len(ids)
    return {"text": text, "output_ids": ids, "meta_info": meta}


def answer_scores(
    rid: str, ids: Sequence[int], scores: Sequence[float], name: str, *, begun: float
) -> Json:
    """The answer to a scored prompt: the first of the ids whose logprobs are asked for has none."""
    start = len(ids) - len(scores) - 1
    rows = zip([None, *scores], ids[start:], strict=True)
    meta: Json = {
        "id": rid,
        "finish_reason": {"type": "length", "length": 0},
        "prompt_tokens": len(ids),
        "completion_tokens": 0,
        "cached_tokens": 0,
        "weight_version": name,
        "weight_versions": [],
        "e2e_latency": time.monotonic() - begun,
        "input_token_logprobs": [(logprob, token, None) for logprob, token in rows],
        "output_token_logprobs": [],
        "output_token_logprobs_length": 0,
    }
    return {"text": "", "output_ids": [], "meta_info": meta}


def _describe_finish_reason(completion: Completion, limit: int) -> Json:
    match completion.stop_reason:
        case StopReason.STOP:
            return {"type": "stop", "matched": int(completion.ids_T[-1])}
        case StopReason.LENGTH:
            return {"type": "length", "length": limit}
        case StopReason.ABORT:
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def _list_version_spans(versions_T: NDArray[np.int32], names: Sequence[str]) -> list[Json]:
    cuts = [0, *(np.flatnonzero(np.diff(versions_T)) + 1).tolist(), len(versions_T)]
    return [
        {"version": names[versions_T[start]], "start": start, "end": end}
        for start, end in pairwise(cuts)
        if end > start
    ]
