"""What `examine` finds wrong in templates."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from agentrl.tokens import Renderer, Tokenizer
from agentrl.tokens.template_check import TemplateReport, examine
from agentrl.types import AssistantTurn, Message, ToolSchema

MakeFolder = Callable[..., Path]
load = cache(Tokenizer.load)
RESULT = "'\\n<tool_response>\\n' + message.content + '\\n"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{{ ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def with_result(folder: Path, shown: str, tools: tuple[ToolSchema, ...]) -> TemplateReport:
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


@pytest.mark.parametrize("shown", ["message.content", "message.content[:60]", "''", "x.y"])
def test_no_two_rows_share_a_name(
    qwen_like: Path, tools: tuple[ToolSchema, ...], shown: str
) -> None:
    names = [row.name for row in with_result(qwen_like, shown, tools).rows]
    assert sorted(set(names)) == sorted(names)


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


THINK = "{{ '<think>' + m.reasoning_content + '</think>' if m.reasoning_content and WHEN }}"
ASKED = (
    "{% set ns = namespace(asked=0) %}"
    "{% for m in messages if m.role == 'user' %}{% set ns.asked = loop.index0 * 2 %}{% endfor %}"
)
THOUGHT = "user, assistant with reasoning, user"


def with_content(make_folder: MakeFolder, content: str) -> Path:
    return make_folder(ASKED + CHATML.replace("{{ m.content }}", content))


@pytest.mark.parametrize(
    ("content", "name", "sampled", "shown"),
    [
        (
            THINK.replace("WHEN", "loop.last") + "{{ m.content }}",
            THOUGHT,
            "'<think>Some thought.</think>Some answer.<|im_end|>",
            "'Some answer.<|im_end|> <|im_start|>user",
        ),
        (
            THINK.replace("WHEN", "loop.index0 > ns.asked") + "{{ m.content }}",
            THOUGHT,
            "'<think>Some thought.</think>Some answer.<|im_end|>",
            "'Some answer.<|im_end|> <|im_start|>user",
        ),
        (
            "{{ m.content.split('</think>')[-1] }}",
            THOUGHT,
            r"'<think>\nSome thought.\n</think>",
            "'Some answer.<|im_end|> <|im_start|>user",
        ),
        (
            "{{ m.content | trim }}",
            "blanks around an answer",
            r"' \nSome answer.\n <|im_end|>",
            "'Some answer.<|im_end|>",
        ),
        (
            "{{ m.content + ('!' if loop.last and m.role == 'assistant' else '') }}",
            "user, assistant",
            "'answer.<|im_end|>",
            "'answer.!<|im_end|>",
        ),
    ],
)
def test_a_rewritten_turn_is_a_row_that_names_both_texts(
    make_folder: MakeFolder, content: str, name: str, sampled: str, shown: str
) -> None:
    report = examine(Renderer(load(with_content(make_folder, content))), with_tools=False)
    rows = {row.name: row for row in report.rows}
    assert report.verdict == "exact"
    assert rows[name].action == "keep"
    kept, _, served = rows[name].detail.partition("; a server that renders")
    assert sampled in kept
    assert shown in served
    preserving = rows["prefix-preserving"].detail
    assert preserving.startswith("not always" if name == THOUGHT else "yes, for turns as it writes")


def test_thinking_that_stays_is_kept(make_folder: MakeFolder) -> None:
    content = THINK.replace("WHEN", "true") + "{{ m.content }}"
    report = examine(Renderer(load(with_content(make_folder, content))), with_tools=False)
    assert [row.detail for row in report.rows if row.name == "prefix-preserving"] == ["yes"]
    assert not any(row.action for row in report.rows)


@pytest.mark.parametrize("when", ["true", "loop.last", "loop.index0 > ns.asked"])
def test_a_rewritten_turn_forks_where_it_is_asked_for(make_folder: MakeFolder, when: str) -> None:
    content = THINK.replace("WHEN", when) + "{{ m.content }}"
    renderer = Renderer(load(with_content(make_folder, content)), reasoning="fork")
    turn = AssistantTurn(text="Some answer.", reasoning="Some thought.")
    asked = [Message(role="user", content=text) for text in ("First.", "Second.")]
    ids = renderer.prompt(asked[:1]) + renderer.assistant(turn)
    going_on = renderer.continuation(ids, [asked[0], turn.message(), asked[1]], 1)
    assert going_on.forks is (when != "true")


def test_what_messages_cannot_say_is_kept_as_it_was_sampled(
    qwen_like: Path, tools: tuple[ToolSchema, ...]
) -> None:
    report = examine(Renderer(load(qwen_like), tools), with_tools=True)
    kept = {row.name: row.detail for row in report.rows if row.action == "keep"}
    named = {name for name in kept if "reasoning" not in name}
    assert named == {"words behind a call", "arguments without blanks"}
    assert '{"key0":"value0"}' in kept["arguments without blanks"]
    assert '{"key0": "value0"}' in kept["arguments without blanks"]


def test_calls_whose_end_is_not_always_the_same_are_a_report_and_no_error(
    make_folder: MakeFolder, tools: tuple[ToolSchema, ...]
) -> None:
    call = (
        "{% for c in m.tool_calls or [] %}<tool_call>"
        '{"arguments": {{ c.function.arguments | tojson }}, "name": "{{ c.function.name }}"}'
        "</tool_call>{% endfor %}"
    )
    folder = make_folder(CHATML.replace("{{ m.content }}", call + "{{ m.content }}"))
    report = examine(Renderer(load(folder), tools), with_tools=True)
    assert report.verdict == "forked"
    assert {"separator", "empty content", "tool result"} <= {row.name for row in report.rows}
