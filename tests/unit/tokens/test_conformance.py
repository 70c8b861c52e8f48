"""What `examine` finds wrong in templates."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from agentrl.tokens import Renderer, Tokenizer
from agentrl.tokens.conformance import Report, examine
from agentrl.types import ToolSchema

MakeFolder = Callable[..., Path]
load = cache(Tokenizer.load)
RESULT = "'\\n<tool_response>\\n' + message.content + '\\n"


def with_result(folder: Path, shown: str, tools: tuple[ToolSchema, ...]) -> Report:
    """The report where the template writes `shown` as the result of a tool."""
    source = load(folder).template.source
    assert source.count(RESULT) == 1
    changed = source.replace(RESULT, RESULT.replace("message.content", f"({shown})"))
    return examine(Renderer(load(folder).with_template(changed), tools), with_tools=True)


@pytest.mark.parametrize(
    "shown",
    [
        "message.content[:60]",
        "message.content | truncate(10000)",
        "message.content.split('\\n')[0]",
        "message.content | striptags",
        "message.content | e | string",
        "message.content | replace('<', '')",
        "message.content | replace('[', '(')",
        "message.content | replace('\\n', ' ')",
        "message.content | wordwrap(20)",
        "message.content + message.content",
        "messages[-1].content",
    ],
)
def test_a_template_that_alters_results_is_refused(
    qwen_like: Path, tools: tuple[ToolSchema, ...], shown: str
) -> None:
    report = with_result(qwen_like, shown, tools)
    assert report.verdict == "refused"
    assert "tool result" in report.reason or "drops or alters 'Result one.'" in report.reason


@pytest.mark.parametrize(
    "shown", ["message.content | trim", "message.content | tojson", "message.content + '\\n'"]
)
def test_a_result_may_be_trimmed_or_written_as_json(
    qwen_like: Path, tools: tuple[ToolSchema, ...], shown: str
) -> None:
    report = with_result(qwen_like, shown, tools)
    assert report.verdict == "exact"
    assert ("tool result", "written once, unchanged") in [(r.name, r.detail) for r in report.rows]
