"""What the answers of all servers have in common: checked, not trusted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import orjson
from numpy.typing import NDArray

from agentrl.errors import EngineError
from agentrl.types import Completion

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What a request asked for, as far as its answer must fit."""

    num_prompt: int
    max_new_tokens: int
    vocab_size: int
    experts: int = 0
    """How many the model sends a token to in each layer; 0 if it is dense."""

    def check_ids(self, completion: Completion) -> None:
        """Raise EngineError for an id that the model does not have."""
        if len(completion.ids_T) and int(completion.ids_T.max()) >= self.vocab_size:
            raise EngineError(
                f"the server sampled id {completion.ids_T.max()}, expected 0 to "
                f"{self.vocab_size - 1}; it serves another model or its vocabulary is padded"
            )


def error_text(status: int, body: bytes) -> str:
    """What a server's error says, whichever of its shapes it has."""
    try:
        content: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = body.decode(errors="replace")
    for key in ("error", "message", "detail", "error_message"):
        if isinstance(content, dict):
            fields = cast("Json", content)
            content = fields.get(key, fields)
    text = " ".join(str(content).split())[:300].rstrip(".")
    return f"{status}: {text}" if text else f"{status} without a message"


def parse_json_body(body: bytes) -> object:
    """What the bytes are as JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"the server's answer is no JSON ({error}): {body[:80]!r}") from error


def require_mapping(value: object, what: str) -> Json:
    """A value that must be an object."""
    if not isinstance(value, dict):
        raise EngineError(f"the server's {what} is a {type(value).__name__}, expected an object")
    return cast("Json", value)


def require_list(value: object, what: str) -> list[object]:
    """A value that must be a list."""
    if not isinstance(value, list):
        raise EngineError(
            f"the server's {what} is a {type(value).__name__}, expected a list; talk to the "
            "server itself, since a router between may drop fields"
        )
    return cast("list[object]", value)


def read_token_versions(spans: list[object], num: int) -> NDArray[np.int32]:
    """The version of each token from spans `{version, start, end}` that cover them in order."""
    versions_T = np.full(num, -1, dtype=np.int32)
    at = 0
    for value in spans:
        span = require_mapping(value, "weight_versions")
        start, end = span.get("start"), span.get("end")
        if start != at or not isinstance(end, int) or not at <= end <= num:
            break
        versions_T[at:end] = _parse_weight_version(span.get("version"))
        at = end
    if at != num:
        raise EngineError(
            f"the server's weight versions cover {at} of {num} tokens; each token needs the "
            "version that it was sampled under"
        )
    return versions_T


def _parse_weight_version(text: object) -> int:
    if isinstance(text, str) and text.isdecimal():
        return int(text)
    raise EngineError(
        f"the server's weights have version {text!r}, expected a number; they were changed by "
        "someone else"
    )
