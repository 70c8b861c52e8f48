"""Lists that begin with no call, that hold none, and text that only looks like one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tokens.formats import FORMATS
from agentrl.types import AssistantTurn, CallError, ToolSchema

TOOL = ToolSchema(name="f", description="", parameters={"properties": {"i": {"type": "integer"}}})
JSON = '{"name": "f", "parameters": {"i": 2}}'
TURNED = '{"parameters": {"i": 2}, "name": "f"}'


def parse(name: str, text: str) -> AssistantTurn:
    return FORMATS[name]().parse_text(text, [TOOL])


def verdicts(turn: AssistantTurn) -> str:
    return "".join("E" if isinstance(c, CallError) else str(c.arguments["i"]) for c in turn.calls)


PYTHON = [
    *["[f(i=1)]", "(f(i=1))", "lambda: 0", "None", "[1, 2]", "(1,)", "{'a': 1}", "-f(i=1)"],
    *["'a'+'b'", "await f(i=1)", "x[0]", "[[f(i=1)]]", "{}", "'f(i=1), f(i=1)'", "*f(i=1)"],
]


@given(first=st.lists(st.sampled_from(PYTHON), min_size=1, max_size=20))
@settings(deadline=None, max_examples=25)
def test_a_pythonic_call_is_found_behind(first: list[str]) -> None:
    turn = parse("pythonic", f"[{', '.join(first)}, f(i=2)]")
    assert (verdicts(turn), turn.text) == ("E" * len(first) + "2", "")


OBJECTS = ["3", "[]", "null", '"x"', "[1, 2]", "{}", '{"a":1}', f"[{JSON}]", '{"name": {"a": 1}}']


@given(first=st.lists(st.sampled_from(OBJECTS), min_size=1, max_size=20))
@settings(deadline=None, max_examples=25)
def test_a_json_call_is_found_behind(first: list[str]) -> None:
    for call in (JSON, TURNED):
        turn = parse("llama3_json", f"[{', '.join(first)}, {call}]")
        assert (verdicts(turn), turn.text) == ("E" * len(first) + "2", "")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("pythonic", "[[f(i=1)]]", "E"),
        ("pythonic", "[(f(i=1))]", "E"),
        ("pythonic", "[{'a': 1}], [f(i=1)]", "E1"),
        ("pythonic", "[1, f(i=", "EE"),
        ("llama3_json", TURNED, "2"),
        ("llama3_json", f"[[{JSON}, {JSON}]]", "E"),
        ("llama3_json", f'{{"a":1}}; {JSON}; null', "E2E"),
        ("llama3_json", f'[{{"a":1}}]; {JSON}', "E2"),
        ("llama3_json", f"{JSON}; [{JSON}, 7]", "22E"),
    ],
)
def test_a_list_of_lists_and_a_row_are_no_answer(name: str, text: str, expected: str) -> None:
    turn = parse(name, text)
    assert (verdicts(turn), turn.text) == (expected, "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pythonic", "[]"),
        ("pythonic", "[Note: I called f(i=1) before]"),
        ("pythonic", "[Note: in Rome, f(i=1) gave rain]"),
        ("pythonic", "[see f(i=1)](https://example.org)"),
        ("pythonic", "[1, 2, [3, 4], 'a, f(i=1)']"),
        ("pythonic", "[{'a': f(i=1)}, x for x in range(3)]"),
        ("pythonic", "[1]\n[2], 3"),
        ("llama3_json", "[]"),
        ("llama3_json", '{"people": [{"name": "Ada", "parameters": {}}]}'),
        ("llama3_json", '[{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}]'),
        ("llama3_json", '{"x": "{\\"name\\": \\"f\\", \\"parameters\\": {}}"}'),
        ("llama3_json", '[1, 2], {"a": {"name": 1}, "parameters": 2}'),
    ],
)
def test_what_is_no_attempt_at_a_call_is_text(name: str, text: str) -> None:
    assert parse(name, text) == AssistantTurn(text=text)
    assert parse(name, f"Look:\n{text}\nDone.").text == f"Look:\n{text}\nDone."


DS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
KIMI = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
ATEM = " to=f<|message|><atem:function_calls>", "</atem:function_calls><|eom|>"
EMPTY = [
    ("mistral", "[TOOL_CALLS][", "]"),
    ("phi4_mini", "functools[", "]"),
    ("phi4_mini", "<|tool_call|>[", "]<|/tool_call|>"),
    ("command_r7b", "<|START_ACTION|>[", "]<|END_ACTION|>"),
    ("command_r7b", "<|START_ACTION|>", "<|END_ACTION|>"),
    ("kimi_k2", *KIMI),
    ("deepseek", *DS),
    ("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>"),
    ("atem", *ATEM),
    ("pythonic", "<|python_start|>[", "]<|python_end|>"),
    ("pythonic", "<|tool_call_start|>[", "]<|tool_call_end|>"),
    ("pythonic", "<|tool_call_start|>", "<|tool_call_end|>"),
    ("pythonic", "<function_calls>", "</function_calls>"),
    ("hermes", "<tool_call>", "</tool_call>"),
    ("qwen3_coder", "<tool_call>", "</tool_call>"),
    ("glm", "<tool_call>", "</tool_call>"),
    ("gemma", "<|tool_call>", "<tool_call|>"),
    ("xml", '<call name="f">', ""),
    ("llama3_json", "<|python_tag|>", ""),
    ("harmony", "<|channel|>commentary to=functions.f<|message|>", "<|call|>"),
]


@pytest.mark.parametrize(("name", "begin", "end"), EMPTY)
@pytest.mark.parametrize("space", ["", "\n\n"])
def test_a_marker_that_opens_calls_but_holds_none_is_an_error(
    name: str, begin: str, end: str, space: str
) -> None:
    for text in (begin + space + end, begin + space):
        (error,) = parse(name, text).calls
        assert isinstance(error, CallError)


def test_every_format_is_tried_without_calls() -> None:
    assert {name for name, *_ in EMPTY} == set(FORMATS)


@given(names=st.lists(st.sampled_from(["f", "g", "functions.f"]), min_size=2, max_size=5))
@settings(deadline=None, max_examples=20)
def test_each_recipient_of_a_message_is_a_call_or_an_error(names: list[str]) -> None:
    head = " ".join(f"to={name}" for name in names)
    good = '<|channel|>commentary to=f<|message|>{"i": 7}<|call|>'
    for text in (
        f'<|channel|>commentary {head}<|message|>{{"i": 1}}<|call|><|start|>assistant{good}',
        f" {head}<|channel|>commentary<|message|>{{}}<|call|><|start|>assistant{good}",
        f"<|channel|>commentary {head}<|call|><|start|>assistant{good}",
        f"{head}<|start|>assistant{good}",
    ):
        assert verdicts(parse("harmony", text)) == "E" * len(names) + "7"
    call = '<atem:invoke name="f"><atem:parameter name="i">1</atem:parameter></atem:invoke>'
    found = verdicts(parse("atem", f" {head}{ATEM[0].removeprefix(' to=f')}{call}{ATEM[1]}"))
    assert found == "E" * (len(names) - 1) + "1"
    assert verdicts(parse("atem", f" to=user {head}<|message|>Hi.<|eot|>")) == "E" * (
        1 + len(names)
    )
