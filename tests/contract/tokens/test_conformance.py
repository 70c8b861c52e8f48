"""What `examine` finds wrong in templates."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from agentrl.tokens import Renderer, Tokenizer
from agentrl.tokens.conformance import Report, examine
from agentrl.types import Message, ToolSchema

MakeFolder = Callable[..., Path]
load = cache(Tokenizer.load)
RESULT = "'\\n<tool_response>\\n' + message.content + '\\n"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{{ ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


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


@pytest.mark.parametrize("by_tokenizer", [True, False])
@pytest.mark.parametrize(
    ("before", "count"), [("", 0), ("{{ bos_token }}", 1), ("\n{{ bos_token }}", 1)]
)
def test_a_bos_that_the_template_writes_is_the_only_one(
    make_folder: MakeFolder, before: str, count: int, by_tokenizer: bool
) -> None:
    folder = make_folder(before + CHATML, bos_by_tokenizer=by_tokenizer, bos_token="<|bos|>")
    renderer = Renderer(load(folder))
    count = count or int(by_tokenizer)
    assert renderer.prompt([Message(role="user", content="a")]).count(3) == count
    report = examine(renderer, with_tools=False)
    assert report.verdict == "exact"
    shown = "<|bos|>, once" if count else "none"
    assert [row.detail for row in report.rows if row.name == "BOS"] == [shown]


def test_two_bos_are_refused(make_folder: MakeFolder) -> None:
    template = "{{ bos_token }}{{ bos_token }}" + CHATML
    report = examine(Renderer(load(make_folder(template, bos_token="<|bos|>"))), with_tools=False)
    assert report.verdict == "refused"
    assert "writes the BOS <|bos|> 2 times" in report.reason
    ends = make_folder(CHATML, bos_token="<|im_end|>")
    assert examine(Renderer(load(ends)), with_tools=False).verdict == "exact"
