"""What the token record's digests are made of: packed tokens, marks, and the hash chain.

The chain of a segment with appends 1..A is

    h_0 = 16 zero bytes
    h_k = blake2b(h_(k-1) || n_k || the n_k packed tokens of append k || its side channels)

where a packed token is its id, logprob bits, version, turn, source and mask in 16 little-endian
bytes. Side channels enter where the policy sampled, together with those of what was given before,
since an engine computes both at once; after the last completion they must be zero. The
digest of a segment is h_A. A mark is a 32-bit fingerprint of one packed token and its channel rows:
marks prove nothing, they name the first token that differs.

An engine's answer is checked and digested by `seal`, in the adapter that parsed it.

Suffixes: N (or T) tokens, A appends.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import EngineError
from agentrl.types import Completion, Source, StopReason
from agentrl.types.batch import Channels

DIGEST_BYTES = 16
START = bytes(DIGEST_BYTES)

_TOKEN = np.dtype(
    [
        ("id", "<i4"),
        ("logprob", "<f4"),
        ("version", "<i4"),
        ("turn", "<i2"),
        ("source", "i1"),
        ("mask", "?"),
    ]
)
_WORD = np.dtype("<i4")
_LAST_WORD = struct.Struct("<hb?")
"""Turn, source and mask."""
NO_VERSION = -1
"""Of tokens that the policy did not sample."""
_SOURCE_AT = 14
_MODEL = int(Source.MODEL)

# Odd constants, so that a change of any one word changes the 64-bit sum.
_WORD_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93],
    dtype=np.uint64,
)
MAX_LOGPROB = 1e-4
"""Rounding may carry a logprob a little above zero, not further."""
_MOST = np.iinfo(np.int32).max
_LEAST = float(np.finfo(np.float32).min)
Integers = Sequence[int] | NDArray[np.integer]
Floats = Sequence[float] | NDArray[np.floating]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The per-token columns that the chain covers."""

    ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    sources: NDArray[np.int8]
    turns: NDArray[np.int16]
    versions: NDArray[np.int32]
    channels: Channels


@dataclass(frozen=True, slots=True)
class Packed:
    """Tokens as bytes, ready to hash: `tokens` [N, 16] and `channels` [N, W], both uint8."""

    tokens: NDArray[np.uint8]
    channels: NDArray[np.uint8]
    header: bytes
    """Names, types and row shapes of the channels; empty without channels."""


def pack(fields: Fields) -> Packed:
    """Lay the columns out token by token."""
    tokens_N = np.empty(len(fields.ids), dtype=_TOKEN)
    tokens_N["id"] = fields.ids
    tokens_N["logprob"] = fields.logprobs
    tokens_N["version"] = fields.versions
    tokens_N["turn"] = fields.turns
    tokens_N["source"] = fields.sources
    tokens_N["mask"] = fields.mask
    return Packed(
        tokens_N.view(np.uint8).reshape(len(tokens_N), _TOKEN.itemsize),
        channel_bytes(fields.channels, len(tokens_N)),
        channel_header(fields.channels),
    )


def join_packed(blocks: Iterable[bytes], channels: Channels) -> Packed:
    """Packed appends, one behind the other."""
    tokens_N = np.frombuffer(b"".join(blocks), dtype=np.uint8).reshape(-1, _TOKEN.itemsize)
    return Packed(tokens_N, channel_bytes(channels, len(tokens_N)), channel_header(channels))


def pack_append(
    ids: NDArray[np.integer],
    source: Source,
    turn: int,
    *,
    mask: bool = False,
    logprobs: NDArray[np.float32] | None = None,
    versions: NDArray[np.int32] | None = None,
) -> bytes:
    """The packed tokens of one append."""
    words_N4 = np.empty((len(ids), 4), dtype=_WORD)
    words_N4[:, 0] = ids
    words_N4[:, 1] = 0 if logprobs is None else logprobs.view(np.int32)
    words_N4[:, 2] = NO_VERSION if versions is None else versions
    words_N4[:, 3] = int.from_bytes(_LAST_WORD.pack(turn, source, mask), "little")
    return words_N4.tobytes()


def unpack(packed: Packed, channels: Channels) -> Fields:
    """The columns of packed tokens."""
    tokens_N = packed.tokens.reshape(-1).view(_TOKEN)
    return Fields(
        ids=tokens_N["id"].copy(),
        mask=tokens_N["mask"].copy(),
        logprobs=tokens_N["logprob"].copy(),
        sources=tokens_N["source"].copy(),
        turns=tokens_N["turn"].copy(),
        versions=tokens_N["version"].copy(),
        channels=channels,
    )


def token_marks(packed: Packed) -> NDArray[np.uint32]:
    """The fingerprint of each token."""
    mixed_N = _hash_byte_rows(packed.tokens, _WORD_FACTORS)
    if packed.channels.shape[1]:
        num_words = -(-packed.channels.shape[1] // 4)
        mixed_N += _hash_byte_rows(packed.channels, _make_odd_hash_factors(num_words))
    mixed_N ^= mixed_N >> np.uint64(32)
    mixed_N *= _WORD_FACTORS[0]
    return (mixed_N >> np.uint64(32)).astype(np.uint32)


def link_digest(previous: bytes, block: bytes | memoryview, channels: bytes = b"") -> bytes:
    """h_k from h_(k-1), the packed tokens of append k, and its side channels if it has any."""
    num = len(block) // _TOKEN.itemsize
    content = b"".join((previous, num.to_bytes(4, "little"), block, channels))
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def chain_digest(packed: Packed, lengths: Iterable[int], start: int = 0) -> bytes:
    """The digest of the segment that begins at token `start` and has appends of these lengths."""
    digest, since = START, start
    view = packed.tokens.reshape(-1).data
    for length in lengths:
        end = start + length
        block = view[start * _TOKEN.itemsize : end * _TOKEN.itemsize]
        channels = b""
        if packed.header and block[_SOURCE_AT] == _MODEL:
            channels = packed.header + packed.channels[since:end].tobytes()
            since = end
        digest = link_digest(digest, block, channels)
        start = end
    return digest


def completion_content(
    ids: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    versions: NDArray[np.int32],
    channels: Channels,
    prompt_channels: Channels,
) -> bytes:
    """All of an engine's answer but the stop reason: three columns of 4 bytes, then channels."""
    columns = ids.tobytes() + logprobs.tobytes() + versions.tobytes()
    if channels:
        columns += channel_bytes(channels, len(ids)).tobytes() + channel_header(channels)
    if prompt_channels:
        columns += b"".join(values.tobytes() for _, values in sorted(prompt_channels.items()))
    return columns


def completion_digest(content: bytes, stop_reason: str) -> bytes:
    """The digest of an engine's answer."""
    content = stop_reason.encode() + b"\0" + content
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def channel_header(channels: Channels) -> bytes:
    """What the channels are, as bytes: sorted names with type and row shape."""
    shapes = [
        (name, channels[name].dtype.str, channels[name].shape[1:]) for name in sorted(channels)
    ]
    return repr(shapes).encode() if shapes else b""


def channel_bytes(channels: Channels, rows: int) -> NDArray[np.uint8]:
    """All channels side by side, by name, as bytes [rows, W]."""
    columns = [
        np.ascontiguousarray(channels[name]).reshape(rows, -1).view(np.uint8)
        for name in sorted(channels)
        if channels[name].size
    ]
    if not columns:
        return np.empty((rows, 0), dtype=np.uint8)
    return np.ascontiguousarray(np.concatenate(columns, axis=1))


def _hash_byte_rows(bytes_NW: NDArray[np.uint8], factors: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit sum per row of its 32-bit words times one odd factor each."""
    padding = -bytes_NW.shape[1] % 4
    if padding:
        bytes_NW = np.pad(bytes_NW, ((0, 0), (0, padding)))
    words_NW = np.ascontiguousarray(bytes_NW).view("<u4")
    mixed_N: NDArray[np.uint64] = words_NW.astype(np.uint64) @ factors
    return mixed_N


def _make_odd_hash_factors(count: int) -> NDArray[np.uint64]:
    """The first odd constants of a fixed sequence, as many as there are channel words."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * _WORD_FACTORS[1]
    steps ^= steps >> np.uint64(29)
    factors: NDArray[np.uint64] = (steps * _WORD_FACTORS[2]) | np.uint64(1)
    return factors


def seal(
    ids: Integers,
    logprobs: Floats,
    versions: Integers,
    stop_reason: StopReason,
    channels: Channels | None = None,
    cached_tokens: int = 0,
    prompt_channels: Channels | None = None,
) -> Completion:
    """Check an engine's answer, freeze its arrays and compute its digest.

    Raises EngineError if lengths differ, ids or versions are negative or no integers, a logprob is
    missing, not finite or positive, or nothing was sampled although the engine was not aborted.
    """
    _check_one_value_per_token(len(ids), len(logprobs), len(versions), channels or {})
    if not len(ids) and stop_reason is not StopReason.ABORT:
        raise EngineError(
            f"completion has no tokens but stop reason {stop_reason}; "
            "the stop token that was sampled must be its last id"
        )
    ids_T = _to_checked_int32_array(ids, "token ids")
    versions_T = _to_checked_int32_array(versions, "policy versions")
    logprobs_T = _to_checked_logprob_array(logprobs)
    frozen, prompt = _freeze_channels(channels), _freeze_channels(prompt_channels)
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


def _check_one_value_per_token(
    num_ids: int, num_logprobs: int, num_versions: int, channels: Channels
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


def _to_checked_int32_array(values: Integers, what: str) -> NDArray[np.int32]:
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
    checked = array.astype(np.int32)
    checked.setflags(write=False)
    return checked


def _to_checked_logprob_array(values: Floats) -> NDArray[np.float32]:
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
    checked = array.astype(np.float32)
    checked.setflags(write=False)
    return checked


def _freeze_channels(channels: Channels | None) -> Channels:
    """Copies that nobody writes to."""
    frozen = {name: np.array(values) for name, values in channels.items()} if channels else {}
    for values in frozen.values():
        values.setflags(write=False)
    return frozen
