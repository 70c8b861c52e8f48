"""What Hermes makes of JSON, beyond what all formats promise."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.tokens import Hermes, Tokenizer, choose_format
from agentrl.tokens.formats.scan import MAX_CHARS, MAX_DEPTH
from agentrl.types import AssistantTurn, CallError, Json, ToolCall, ToolSchema

ANY = ToolSchema(name="any", description="", parameters={"type": "object"})


def parse(text: str, tools: Sequence[ToolSchema] = (ANY,)) -> AssistantTurn:
    return Hermes().parse_text(text, tools)


def written(name: Json, arguments: Json) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def called(text: str, tools: Sequence[ToolSchema] = (ANY,)) -> list[object]:
    """Arguments of calls and reasons of errors, in order."""
    return [
        dict(call.arguments) if isinstance(call, ToolCall) else call.reason.value
        for call in parse(text, tools).calls
    ]


@pytest.mark.parametrize(
    "value",
    [
        "</tool_call>",
        "<tool_call>",
        written("any", {"x": 1}),
        "<think>no</think>",
        'quotes " and \\ and \\" and {[}]',
        "def f():\n    if x < 3:\n        return '\\n'\n",
        "ü 😀 \u2028",
        {"a": {"b": {"c": [1, 2.5, None, True, [{"d": 4}]]}}},
        [{"x": 1}, {"x": 2}],
        "",
    ],
)
def test_argument_values_come_through_unchanged(value: Json) -> None:
    text = f"First.\n{written('any', {'v': value})}\nThen.\n{written('any', {})}"
    turn = parse(text)
    assert turn.calls == (
        ToolCall(name="any", arguments={"v": value}, id="call_0"),
        ToolCall(name="any", arguments={}, id="call_1"),
    )
    assert "tool_call" not in turn.text
    assert turn.text.split() == ["First.", "Then."]


GOOD = written("any", {"ok": 1})


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        ("any(1)", "malformed", "expected a JSON object"),
        ("[1]", "malformed", "expected a JSON object"),
        ("", "malformed", "expected a JSON object"),
        ('{"name": "any", "arguments": {"a": 1, "a": 2}}', "malformed", "given twice"),
        ('{"name": "any", "arguments": {"a": NaN}}', "malformed", "NaN"),
        ('{"name": "any", "arguments": {"a": -Infinity}}', "malformed", "Infinity"),
        ('{"name": "any", "arguments": {"a": 1e999}}', "malformed", "too large"),
        ('{"name": "any", "arguments": {"a": ' + "9" * 5000 + "}}", "malformed", "digits"),
        (r'{"name": "any", "arguments": {"a": "\ud800"}}', "malformed", "surrogate"),
        ('{"name": "any", "arguments": {"a": "1\n2"}}', "malformed", "control character"),
        ('{"name": "any", "arguments": {"a": 1}', "malformed", "not complete"),
        ('{"name": "any", "arguments": {"a": 1}}}', "malformed", "expected </tool_call>"),
        ('{"name": "any", "arguments": {"a": 1]}', "malformed", "not valid JSON"),
        ('{"name": "any" "arguments": {}}', "malformed", "delimiter"),
        ('{"arguments": {}}', "malformed", 'no "name"'),
        ('{"name": null, "arguments": {}}', "malformed", 'no "name"'),
        ('{"name": "", "arguments": {}}', "malformed", 'no "name"'),
        ('{"name": "any", "parameters": {}}', "malformed", "'parameters'"),
        ('{"name": "any", "arguments": null}', "malformed", "null"),
        ('{"name": "any", "arguments": []}', "malformed", "array"),
        ('{"name": "any", "arguments": ""}', "malformed", "string"),
        ('{"name": "any", "arguments": "[1]"}', "malformed", "string"),
        (r'{"name": "any", "arguments": "{\"a\": NaN}"}', "malformed", "NaN"),
        ('{"name": "ayn", "arguments": {}}', "unknown_tool", "did you mean 'any'?; the tools are"),
        ('{"name": "any{}", "arguments": {}}', "unknown_tool", "no tool 'any{}'"),
        ('{"name": "any", "arguments": {"a": ' + "[" * 65 + "]" * 65 + "}}", "too_large", "64"),
        ('{"name": "any", "arguments": {"a": "' + "x" * MAX_CHARS + '"}}', "too_large", "262144"),
    ],
)
def test_a_bad_call_is_an_error_and_its_neighbours_are_calls(
    body: str, reason: str, message: str
) -> None:
    turn = parse(f"A{GOOD}B<tool_call>{body}</tool_call>C{GOOD}D")
    first, bad, last = turn.calls
    assert isinstance(bad, CallError)
    assert bad.reason.value == reason
    assert message in bad.message
    assert [call.id for call in turn.calls] == ["call_0", "call_1", "call_2"]
    assert isinstance(first, ToolCall)
    assert isinstance(last, ToolCall)
    assert first.arguments == last.arguments == {"ok": 1}
    assert turn.text == "ABCD"


def test_an_unclosed_call_does_not_swallow_the_next() -> None:
    assert called('<tool_call>{"name": "any", "arguments": {}}\n' + GOOD) == ["unclosed", {"ok": 1}]
    assert called('<tool_call>{"name": "any", ' + GOOD) == ["unclosed", {"ok": 1}]
    assert called('<tool_call>{"name": "any", "arguments": {"a": "b') == ["unclosed"]
    assert called('<tool_call>{"name": "any", "arguments": {}}') == ["unclosed"]
    assert called("<tool_call>") == ["unclosed"]


def test_arguments_may_be_left_out_or_stand_in_a_string() -> None:
    assert called('<tool_call>{"name": "any"}</tool_call>') == [{}]
    assert called('<tool_call>{"arguments": {"a": 1}, "name": "any"}</tool_call>') == [{"a": 1}]
    assert called(written("any", '{"a": "</tool_call>"}')) == [{"a": "</tool_call>"}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"a": 1, "b": 2.0}, {"a": 1, "b": 2}),
        ({"a": "1", "b": 2}, "argument 'a' is the string '1', expected integer"),
        ({"a": 1}, "argument 'b' is missing"),
        ({"a": 1, "b": 2, "c": 3}, "argument 'c' is not expected"),
        ({"a": 1.5, "b": 2}, "argument 'a' is the number 1.5, expected integer"),
        ({"a": True, "b": 2}, "argument 'a' is true, expected integer"),
    ],
)
def test_types_come_from_the_schema(
    tools: Sequence[ToolSchema], arguments: Json, expected: object
) -> None:
    (call,) = parse(written("add", arguments), tools).calls
    if isinstance(call, ToolCall):
        assert call.arguments == expected
        assert isinstance(call.arguments["b"], int)
    else:
        assert call.reason.value == "bad_arguments"
        assert call.name == "add"
        assert str(expected) in call.message


def test_thinking_is_cut_off_first() -> None:
    turn = parse(f"<think>\nMaybe {written('any', {'no': 1})}?\n</think>\n\nSo: {GOOD} done")
    assert turn.reasoning == f"Maybe {written('any', {'no': 1})}?"
    assert turn.calls == (ToolCall(name="any", arguments={"ok": 1}, id="call_0"),)
    assert turn.text == "So:  done"
    open_end = parse(f"Hm. <think>I never stop {GOOD}")
    assert (open_end.text, open_end.calls) == ("Hm.", ())
    assert open_end.reasoning == f"I never stop {GOOD}"


def test_a_turn_without_calls_is_its_text() -> None:
    assert parse("The answer is 5 < 6") == AssistantTurn(text="The answer is 5 < 6")
    assert parse("") == AssistantTurn()


def test_the_format_is_found_or_named(chatml: Path, qwen_like: Path) -> None:
    for folder in (chatml, qwen_like):
        assert choose_format(Tokenizer.load(folder)).name == "hermes"
    tokenizer = Tokenizer.load(chatml)
    assert choose_format(tokenizer, "hermes").name == "hermes"
    with pytest.raises(ConfigError, match=r"tool format hermse is unknown .*did you mean hermes\?"):
        choose_format(tokenizer, "hermse")
    definition = (chatml / "tokenizer.json").read_text(encoding="utf-8")
    other = Tokenizer(definition, "{{ messages[0].tool_calls }} [CALL]")
    with pytest.raises(ConfigError, match="not built in; name the format"):
        choose_format(other)


def test_depth_at_the_cap_is_fine() -> None:
    depth = MAX_DEPTH - 2
    nested = "[" * depth + "]" * depth
    text = '<tool_call>{"name": "any", "arguments": {"a": ' + nested + "}}</tool_call>"
    assert called(text) == [{"a": json.loads(nested)}]
