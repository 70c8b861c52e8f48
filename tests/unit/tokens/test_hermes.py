"""The Hermes parser: one table, then properties."""

import json
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.tokens import Hermes, Tokenizer, choose_format
from agentrl.tokens.formats.reader import MAX_CALLS
from agentrl.tokens.formats.scan import MAX_CHARS, MAX_DEPTH
from agentrl.types import AssistantTurn, CallError, Json, StopReason, ToolCall, ToolSchema

same_fixture = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

load = cache(Tokenizer.load)
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


def test_strings_stay_strings(tools: Sequence[ToolSchema]) -> None:
    (call,) = parse(written("write", {"text": "02134", "mode": "a"}), tools).calls
    assert isinstance(call, ToolCall)
    assert call.arguments == {"text": "02134", "mode": "a"}
    (bad,) = parse(written("write", {"text": 2134}), tools).calls
    assert isinstance(bad, CallError)


def test_thinking_is_cut_off_first() -> None:
    turn = parse(f"<think>\nMaybe {written('any', {'no': 1})}?\n</think>\n\nSo: {GOOD} done")
    assert turn.reasoning == f"Maybe {written('any', {'no': 1})}?"
    assert turn.calls == (ToolCall(name="any", arguments={"ok": 1}, id="call_0"),)
    assert turn.text == "So:  done"
    open_end = parse(f"Hm. <think>I never stop {GOOD}")
    assert (open_end.text, open_end.calls) == ("Hm.", ())
    assert open_end.reasoning == f"I never stop {GOOD}"


def test_a_turn_without_calls_is_its_text() -> None:
    turn = parse("The answer is 5 </tool_call> < 6")
    assert turn == AssistantTurn(text="The answer is 5 </tool_call> < 6")
    assert parse("") == AssistantTurn()


def test_there_is_a_cap_on_calls() -> None:
    turn = parse(GOOD * (MAX_CALLS + 5))
    assert len(turn.calls) == MAX_CALLS + 1
    last = turn.calls[-1]
    assert isinstance(last, CallError)
    assert last.reason.value == "too_many"


TWO = f"Look:\n{written('any', {'text': 'a </tool_call> b', 'n': [1, -2.5]})}\n{GOOD}"


def test_a_prefix_never_holds_an_altered_call() -> None:
    whole = parse(TWO).calls
    assert len(whole) == 2
    for end in range(len(TWO)):
        turn = Hermes().parse_text(TWO[:end], [ANY], stop_reason=StopReason.LENGTH)
        complete = tuple(call for call in turn.calls if isinstance(call, ToolCall))
        assert complete == whole[: len(complete)]
        errors = [call for call in turn.calls if isinstance(call, CallError)]
        assert [error.reason.value for error in errors] in ([], ["unclosed"])
        assert turn.stop_reason is StopReason.LENGTH


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" + "[" * 100_000,
        '<tool_call>{"name": ' + "[" * 100_000,
        '<tool_call>{"name": ' + '{"a": ' * 100_000,
        "<tool_call>" * 50_000,
        '<tool_call>{"a": "' * 20_000,
        "<tool_call>{" * 50_000,
        "<think>" * 50_000,
        "<think></think>" * 30_000,
        "<tool_call>{}" * 30_000 + "</tool_call>",
        '<tool_call>{"a": "' + "\\" * 100_001,
        GOOD + "</tool_call>" * 50_000,
        '<tool_call>{"name": "any", "arguments": "' + "{" * 100_000 + '"}</tool_call>',
        '<tool_call>{"name": "' + "any" * 50_000 + '"}</tool_call>',
    ],
)
def test_nothing_takes_long(text: str) -> None:
    begin = time.thread_time()
    parse(text)
    assert time.thread_time() - begin < 0.25


PARTS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "{", "}", "[", "]", '"', "\\", ":", ",",
    '"name"', '"arguments"', '"any"', "1", "null", " ", "\n", "<", "x", "\ud800", GOOD,
]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=30).map("".join))
@settings(deadline=None)
def test_any_text_gives_a_turn(text: str) -> None:
    turn = parse(text)
    assert [call.id for call in turn.calls] == [f"call_{i}" for i in range(len(turn.calls))]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)  # fmt: skip
argument_sets = st.dictionaries(st.text(max_size=4), json_values, max_size=3)


@given(st.lists(argument_sets, min_size=1, max_size=3))
@settings(deadline=None, max_examples=50)
def test_what_is_written_is_read(arguments: list[dict[str, Json]]) -> None:
    calls = tuple(
        ToolCall(name="any", arguments=a, id=f"call_{i}") for i, a in enumerate(arguments)
    )
    assert parse(Hermes().render_calls(calls)).calls == calls


def test_a_marker_with_its_own_id_counts_by_id_only(
    qwen_like: Path, tools: Sequence[ToolSchema]
) -> None:
    tokenizer = Tokenizer.load(qwen_like)
    hermes = Hermes(tokenizer)
    text = f"a {written('add', {'a': 1, 'b': 2})} é"
    stop = tokenizer.controls["<|im_end|>"]
    by_id = [*tokenizer.encode(text, specials=True), stop]
    turn = hermes.parse(by_id, StopReason.STOP, tools)
    assert turn.text == "a  é"
    assert turn.calls == (ToolCall(name="add", arguments={"a": 1, "b": 2}, id="call_0"),)

    spelled = [*tokenizer.encode(text, specials=False), stop]
    turn = hermes.parse(spelled, StopReason.STOP, tools)
    assert turn == AssistantTurn(text=text)


def test_a_closing_marker_inside_a_string_is_text_even_by_id(
    qwen_like: Path, tools: Sequence[ToolSchema]
) -> None:
    tokenizer = Tokenizer.load(qwen_like)
    text = written("write", {"text": "x</tool_call><tool_call>y<think>"})
    ids = tokenizer.encode(text, specials=True)
    turn = Hermes(tokenizer).parse(ids, StopReason.LENGTH, tools)
    (call,) = turn.calls
    assert isinstance(call, ToolCall)
    assert call.arguments == {"text": "x</tool_call><tool_call>y<think>"}
    assert turn.stop_reason is StopReason.LENGTH


@given(data=st.data())
@same_fixture
def test_any_ids_give_a_turn(qwen_like: Path, data: st.DataObject) -> None:
    tokenizer = load(qwen_like)
    some = st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(
        sorted(tokenizer.controls.values())
    )
    ids = data.draw(st.lists(some, max_size=20))
    stop = data.draw(st.sampled_from(StopReason))
    turn = Hermes(tokenizer).parse(ids, stop, [ANY])
    assert turn.stop_reason is stop


def test_the_format_is_found_or_named(chatml: Path, qwen_like: Path) -> None:
    for folder in (chatml, qwen_like):
        assert choose_format(Tokenizer.load(folder)).name == "hermes"
    tokenizer = Tokenizer.load(chatml)
    assert choose_format(tokenizer, "hermes").name == "hermes"
    with pytest.raises(ConfigError, match="'hermse' is unknown; did you mean 'hermes'"):
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
