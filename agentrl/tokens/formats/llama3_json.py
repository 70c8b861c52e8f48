"""Llama 3.x: `{"name": ..., "parameters": {...}}`, with or without `<|python_tag|>` before it."""

import re
from collections.abc import Sequence
from functools import partial

from agentrl.tokens.formats.base import ToolFormat, to_json
from agentrl.tokens.formats.pythonic import read_python_call
from agentrl.tokens.formats.reader import Reader
from agentrl.types import ToolCall

TAG = "<|python_tag|>"


class Llama3Json(ToolFormat):
    """JSON objects, one or several with `;` between, or `NAME.call(KEY=VALUE)` behind the tag.

    Without the tag, an object that begins with `"name"` at the beginning of a line is a call.
    """

    name = "llama3_json"
    signs = (("<|start_header_id|>", '"parameters": '), (TAG,))
    starts = (TAG,)
    bare = re.compile(r'^[ \t]*(\{\s{0,8}"name")', re.MULTILINE)

    def read_call(self, reader: Reader) -> None:
        """See `ToolFormat.read_call`."""
        going_on = True
        while going_on:
            reader.skip_space()
            step = partial(_read_one, reader)
            found = reader.attempt(step, starts=reader.stops, bare=self.bare)
            reader.skip_space()
            going_on = found and ((reader.take(";") and not reader.at_stop) or reader.at("{"))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return "; ".join(to_json({"name": c.name, "parameters": c.arguments}) for c in calls)


def _read_one(reader: Reader) -> None:
    if not reader.at("{"):
        read_python_call(reader, until=";", method=".call")
        return
    found = reader.take_listed()
    reader.add_object(found, arguments_keys=("parameters", "arguments"), ignored=("type",))
