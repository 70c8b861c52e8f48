"""Llama 3.x: `{"name": ..., "parameters": {...}}`, with or without `<|python_tag|>` before it."""

import re
from collections.abc import Sequence

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
        reader.skip_space()
        if not reader.at("{"):
            read_python_call(reader, method=".call")
            return
        while reader.at("{"):
            if not reader.attempt(lambda: _read_one(reader), starts=self.starts, bare=self.bare):
                return
            reader.skip_space()
            reader.take(";")
            reader.skip_space()

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.render_calls`."""
        return "; ".join(to_json({"name": c.name, "parameters": c.arguments}) for c in calls)


def _read_one(reader: Reader) -> None:
    found = reader.take_json(listed=True)
    reader.add_object(found, arguments_keys=("parameters", "arguments"), ignored=("type",))
