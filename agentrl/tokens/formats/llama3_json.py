"""Llama 3.x: `{"name": ..., "parameters": {...}}`, with or without `<|python_tag|>` before it."""

import re
from collections.abc import Sequence
from functools import partial

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.pythonic import NO_CALL, read_python_call
from agentrl.tokens.formats.reader import Reader
from agentrl.types import ToolCall

TAG = "<|python_tag|>"
_NEXT = re.compile(r",?\s{0,16}(?:(?=\{)|([^\W\d][\w.-]{0,255}\.call\())")


class Llama3Json(ToolFormat):
    """JSON objects, one or several with `;` between, or `NAME.call(KEY=VALUE)` behind the tag.

    Without the tag, an object that begins with `"name"`, or with its type, at the beginning of a
    line is a call, and so is each element of a list that begins with one,
    also behind words, numbers or lists.
    """

    name = "llama3_json"
    signs = (("<|start_header_id|>", '"parameters": '), (TAG,))
    starts = (TAG,)
    bare = re.compile(
        rf"^[ \t]*((?:\[\s{{0,8}}(?:{NO_CALL}\s{{0,8}},\s{{0,8}}){{0,8}})?"
        r'\{\s{0,8}"(?:name"|type"\s{0,8}:\s{0,8}"function"))',
        re.MULTILINE,
    )

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        tagged, going_on = reader.text.endswith(TAG, 0, reader.position), True
        if not tagged and reader.at("["):
            reader.attempt_list(partial(_read_object, reader))
            return
        while going_on:
            reader.skip_space()
            step = partial(_read_one, reader)
            found = reader.attempt(step, starts=reader.stops, bare=self.bare)
            going_on = found and _goes_on(reader, tagged)

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return "; ".join(to_json({"name": c.name, "parameters": c.arguments}) for c in calls)


def _goes_on(reader: Reader, tagged: bool) -> bool:
    reader.skip_space()
    if reader.take(";"):
        return not reader.at_stop
    more = _NEXT.match(reader.text, reader.position)
    if not more or (more[1] and not tagged):
        return False
    reader.position = more.start(1) if more[1] else more.end()
    return True


def _read_one(reader: Reader) -> None:
    if reader.at("{"):
        _read_object(reader)
    else:
        read_python_call(reader, until=";", method=".call")


def _read_object(reader: Reader) -> None:
    found = reader.take_listed()
    reader.add_object(found, arguments_keys=("parameters", "arguments"), ignored=("type",))
