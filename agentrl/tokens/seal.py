"""`seal`: an engine's answer, checked and digested by the adapter that parsed it."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import EngineError
from agentrl.tokens.hash_chain import completion_content, completion_digest
from agentrl.types import Completion, StopReason

_Scalar = TypeVar("_Scalar", bound=np.generic)

MAX_LOGPROB = 1e-4
"""Rounding may carry a logprob a little above zero, not further."""

_MOST = np.iinfo(np.int32).max
_LEAST = float(np.finfo(np.float32).min)

Integers = Sequence[int] | NDArray[np.integer]
Floats = Sequence[float] | NDArray[np.floating]


def seal(
    ids: Integers,
    logprobs: Floats,
    versions: Integers,
    stop_reason: StopReason,
    channels: Mapping[str, NDArray[np.generic]] | None = None,
    cached_tokens: int = 0,
    prompt_channels: Mapping[str, NDArray[np.generic]] | None = None,
) -> Completion:
    """Check an engine's answer, freeze its arrays and compute its digest.

    Raises EngineError if lengths differ, ids or versions are negative or no integers, a logprob is
    missing, not finite or positive, or nothing was sampled although the engine was not aborted.
    """
    channels = channels or {}
    _check_lengths(len(ids), len(logprobs), len(versions), channels)
    if not len(ids) and stop_reason is not StopReason.ABORT:
        raise EngineError(
            f"completion has no tokens but stop reason {stop_reason}; "
            "the stop token that was sampled must be its last id"
        )
    ids_T = _check_integers(ids, "token ids")
    versions_T = _check_integers(versions, "policy versions")
    logprobs_T = _check_logprobs(logprobs)
    frozen = {name: _frozen(np.array(values)) for name, values in channels.items()}
    given = prompt_channels or {}
    prompt = {name: _frozen(np.array(values)) for name, values in given.items()}
    content = completion_content(ids_T, logprobs_T, versions_T, frozen, prompt)
    return Completion(
        ids_T=ids_T,
        logprobs_T=logprobs_T,
        versions_T=versions_T,
        stop_reason=stop_reason,
        channels=frozen,
        prompt_channels=prompt,
        cached_tokens=cached_tokens,
        digest=completion_digest(content, stop_reason),
        sealed=content,
    )


def _check_lengths(
    num_ids: int, num_logprobs: int, num_versions: int, channels: Mapping[str, NDArray[np.generic]]
) -> None:
    if num_logprobs != num_ids:
        raise EngineError(
            f"completion has {num_ids} tokens but {num_logprobs} logprobs; "
            "ask the engine to return the logprob of every sampled token"
        )
    if num_versions != num_ids:
        raise EngineError(
            f"completion has {num_ids} tokens but {num_versions} policy versions; "
            "give the version that each token was sampled under"
        )
    for name, values in channels.items():
        if not values.ndim or len(values) != num_ids:
            raise EngineError(
                f"completion has {num_ids} tokens but side channel {name!r} has shape "
                f"{values.shape}; give one row per token"
            )


def _check_integers(values: Integers, what: str) -> NDArray[np.int32]:
    array = np.asarray(values) if len(values) else np.empty(0, dtype=np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise EngineError(
            f"completion's {what} are {array.ndim}-dimensional {array.dtype}; "
            "expected a flat list of integers"
        )
    # A negative number is a large one without its sign.
    unsigned = array.astype(np.int64, copy=False).view(np.uint64)
    if len(array) and np.maximum.reduce(unsigned) > _MOST:
        raise EngineError(
            f"completion's {what} run from {array.min()} to {array.max()}; "
            "expected integers from 0 that fit 32 bits"
        )
    return _frozen(array.astype(np.int32))


def _check_logprobs(values: Floats) -> NDArray[np.float32]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise EngineError(
            f"completion's logprobs are {array.ndim}-dimensional; expected a flat list of numbers"
        )
    # Both are NaN where one of the numbers is.
    least = np.minimum.reduce(array, initial=0.0)
    if not (least >= _LEAST and np.maximum.reduce(array, initial=0.0) <= MAX_LOGPROB):
        first = int(np.argmin((array >= _LEAST) & (array <= MAX_LOGPROB)))
        if values[first] is None:
            raise EngineError(
                f"completion's logprob of token {first} is None; "
                "ask the engine to return the logprob of every sampled token"
            )
        raise EngineError(
            f"completion's logprob of token {first} is {array[first]:g}; "
            "expected a finite natural logarithm of a probability, at most 0"
        )
    return _frozen(array.astype(np.float32))


def _frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    array.setflags(write=False)
    return array
