"""Llama 3.x: `{"name": ..., "parameters": {...}}`, with or without `<|python_tag|>` before it."""

import re
from collections.abc import Sequence
from functools import partial

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.lists import find_elements
from agentrl.tokens.formats.pythonic import read_python_call
from agentrl.tokens.formats.reader import Reader
from agentrl.types import ToolCall

TAG = "<|python_tag|>"
_BEGIN = re.compile(r"^[ \t]*([\[{])", re.MULTILINE)
_KEY = re.compile(
    r'"(?:(?P<name>name)|(?P<arguments>parameters|arguments)|(?P<type>type"\s{0,8}:\s{0,8}"function)'
    r'|[^"\n]{0,64})"'
)
_NEXT = re.compile(r",?\s{0,16}(?:(?=\{)|([^\W\d][\w.-]{0,255}\.call\())")


class Llama3Json(ToolFormat):
    """JSON objects, one or several with `;` between, or `NAME.call(KEY=VALUE)` behind the tag.

    Without the tag, an object at the beginning of a line is a call if its first key is `"name"`, or
    its type, or if it has keys for name and arguments, and so is each element of a list or a row
    that holds one.
    """

    name = "llama3_json"
    signs = (("<|start_header_id|>", '"parameters": '), (TAG,))
    starts = (TAG,)

    def find_bare(self, text: str, start: int) -> int:
        """See `ToolFormat.find_bare`."""
        for found in _BEGIN.finditer(text, start):
            if _holds_keys_of_json_calls(text, found.start(1)):
                return found.start(1)
        return len(text)

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        tagged, going_on = reader.text.endswith(TAG, 0, reader.position), True
        while going_on:
            reader.skip_space()
            if not tagged and reader.at("["):
                reader.attempt_list(partial(_add_json_call_to_reader, reader))
                going_on = _take_separator_of_next_call(reader, tagged)
            else:
                step = partial(_add_llama3_call_to_reader, reader)
                found = reader.attempt(step, starts=reader.stops, bare=self.find_bare)
                going_on = found and _take_separator_of_next_call(reader, tagged)

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return "; ".join(to_json({"name": c.name, "parameters": c.arguments}) for c in calls)


def _holds_keys_of_json_calls(text: str, begin: int) -> bool:
    seen: dict[int, set[str | None]] = {}
    for bracket, place, _ in find_elements(text, begin):
        key = _KEY.match(text, place) if text[bracket] == "{" else None
        if key and not seen and key.lastgroup in ("name", "type"):
            return True
        if key and {"name", "arguments"} <= seen.setdefault(bracket, set()) | {key.lastgroup}:
            return True
        if key:
            seen[bracket].add(key.lastgroup)
    return False


def _take_separator_of_next_call(reader: Reader, tagged: bool) -> bool:
    reader.skip_space()
    if reader.take(";"):
        return not reader.at_stop
    more = _NEXT.match(reader.text, reader.position)
    if not more or (more[1] and not tagged):
        return False
    reader.position = more.start(1) if more[1] else more.end()
    return True


def _add_llama3_call_to_reader(reader: Reader) -> None:
    if reader.at("{"):
        _add_json_call_to_reader(reader)
    else:
        read_python_call(reader, until=";", method=".call")


def _add_json_call_to_reader(reader: Reader) -> None:
    found = reader.take_listed()
    reader.add_object(found, arguments_keys=("parameters", "arguments"), ignored=("type",))
