"""The page about formats names each of them, and its example is one."""

import re
from collections.abc import Sequence
from pathlib import Path

from agentrl.tokens import ToolFormat
from agentrl.tokens.formats import FORMATS
from agentrl.tokens.formats.base import to_json
from agentrl.tokens.formats.reader import Reader
from agentrl.types import ToolCall, ToolSchema

PAGE = Path(__file__).parents[3] / "docs" / "tokens.md"


def test_the_table_names_all_formats() -> None:
    names = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert names == list(FORMATS)


def test_the_example_is_a_format() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [example] = [block for block in blocks if "class Bracketed" in block]
    names = {
        "ToolFormat": ToolFormat,
        "Reader": Reader,
        "Sequence": Sequence,
        "ToolCall": ToolCall,
        "to_json": to_json,
    }
    exec(compile(example, str(PAGE), "exec"), names)
    made: ToolFormat = names["Bracketed"]()  # type: ignore[operator]
    calls = tuple(ToolCall(name="f", arguments={"a": i}, id=f"call_{i}") for i in range(2))
    tools = [ToolSchema(name="f", description="", parameters={"type": "object"})]
    assert made.parse_text(made.render_calls(calls), tools).calls == calls
