"""Python values as JSON text that gives equal values back.

What JSON has is written as plain JSON. A few more kinds are written as an object with one key that
begins with `$`: tuples, sets, bytes, dicts that JSON cannot hold, numbers that are not finite.
Anything else is kept as its `repr`: readable, but not the same object any more.
"""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from agentrl.types import Message, ToolCall


@dataclass(frozen=True, slots=True)
class Opaque:
    """What is read back for a value that could not be stored: its `repr`."""

    text: str


def dump_value(value: object) -> str:
    """A value as JSON text; letters beyond ASCII stay readable where they are valid."""
    data = _encode_json(value)
    text = json.dumps(data, ensure_ascii=False)
    return text if _is_encodable_as_utf8(text) else json.dumps(data)


def load_value(text: str) -> Any:
    """The value of a JSON text."""
    return _decode_json(json.loads(text))


def dump_messages(messages: tuple[Message, ...]) -> str:
    """Messages as a JSON array of objects; empty fields are left out."""
    return dump_value([_dump_message_as_dict(message) for message in messages])


def load_messages(text: str) -> tuple[Message, ...]:
    """The messages of a JSON array."""
    return tuple(_load_message_from_dict(data) for data in load_value(text))


def safe_text(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _dump_message_as_dict(message: Message) -> dict[str, object]:
    data: dict[str, object] = {"role": message.role, "content": message.content}
    if message.reasoning:
        data["reasoning"] = message.reasoning
    if message.tool_calls:
        data["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        data["tool_call_id"] = message.tool_call_id
    if message.name:
        data["name"] = message.name
    return data


def _load_message_from_dict(data: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in data.pop("tool_calls", ()))
    return Message(**data, tool_calls=calls)


def _is_encodable_as_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode_json(value: object) -> object:
    match value:
        case None | bool() | int() | str() | float():
            # Enums and other subclasses of the plain kinds become the plain kind.
            if isinstance(value, float):
                return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
            for kind in (bool, int, str):
                if isinstance(value, kind):
                    return kind(value)
            return value
        case list():
            return [_encode_json(item) for item in cast("list[object]", value)]
        case tuple():
            return {"$tuple": [_encode_json(item) for item in cast("tuple[object, ...]", value)]}
        case Mapping():
            return _encode_mapping_as_json(cast("Mapping[object, object]", value))
        case _:
            return _encode_object_with_tag(value)


def _encode_object_with_tag(value: object) -> object:
    match value:
        case set() | frozenset():
            items = sorted(cast("set[object]", value), key=repr)
            tag = "$set" if isinstance(value, set) else "$frozenset"
            return {tag: [_encode_json(item) for item in items]}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case Message():
            return {"$message": _encode_json(_dump_message_as_dict(value))}
        case np.generic():
            return _encode_json(cast(object, value.item()))
        case Opaque():
            return {"$repr": value.text}
        case _:
            return {"$repr": repr(value)}


def _encode_mapping_as_json(value: Mapping[object, object]) -> object:
    plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
    if plain:
        return {str(key): _encode_json(item) for key, item in value.items()}
    return {"$dict": [[_encode_json(key), _encode_json(item)] for key, item in value.items()]}


def _decode_json(data: Any) -> Any:
    if isinstance(data, list):
        return [_decode_json(item) for item in cast("list[object]", data)]
    if not isinstance(data, dict):
        return data
    items = cast("dict[str, Any]", data)
    tag = next(iter(items), "")
    if tag.startswith("$"):
        return _decode_tagged_value(tag, items[tag])
    return {key: _decode_json(item) for key, item in items.items()}


def _decode_tagged_value(tag: str, data: Any) -> object:
    match tag:
        case "$float":
            return float(data)
        case "$tuple":
            return tuple(_decode_json(data))
        case "$set":
            return set(_decode_json(data))
        case "$frozenset":
            return frozenset(_decode_json(data))
        case "$bytes":
            return base64.b64decode(data)
        case "$dict":
            return {_decode_json(key): _decode_json(item) for key, item in data}
        case "$message":
            return _load_message_from_dict(_decode_json(data))
        case "$repr":
            return Opaque(data)
        case _:
            raise ValueError(f"got the unknown tag {tag}")
