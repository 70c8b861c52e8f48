"""What models of each family write, as their templates and cards show it."""

# ruff: noqa: RUF001 - DeepSeek's markers are written with full-width bars

from collections.abc import Mapping, Sequence

import pytest

from agentrl.tokens.formats import FORMATS
from agentrl.types import AssistantTurn, Json, ToolCall, ToolSchema

TOOLS = (
    ToolSchema(
        name="get_weather",
        description="",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "metric": {"type": "boolean"},
                "hours": {"type": "array"},
                "zip": {"type": ["string", "null"]},
            },
        },
    ),
    ToolSchema(name="now", description="", parameters={"type": "object"}),
)
ROME: Mapping[str, Json] = {"city": "Rome", "days": 2}
DS, SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"
DS_CALL, DS_END, DS_STOP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
GLM_CITY = "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
GLM_DAYS = "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
R7B = '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome", "days": 2}}'
CALLED = Sequence[tuple[str, Mapping[str, Json]]]

WIRE: list[tuple[str, str, str, str, CALLED]] = [
    (
        "hermes",
        '<think>\nHm.\n</think>\n\nLook:\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Rome", "days": 2}}\n</tool_call>\n<tool_call>\n{"name": "now"}\n</tool_call>',
        "Hm.",
        "Look:",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "qwen3_coder",
        "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n"
        "<parameter=zip>\nNone\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "",
        "I look.",
        [("get_weather", {**ROME, "metric": True, "zip": None}), ("now", {})],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=get_weather><parameter=city>\n\nRo\nme\n\n</parameter>"
        "<parameter=zip>00184</parameter></function></tool_call>",
        "",
        "",
        [("get_weather", {"city": "\nRo\nme\n", "zip": "00184"})],
    ),
    (
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Rome", "days": 2}}',
        "",
        "",
        [("get_weather", ROME)],
    ),
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Rome", '
        '"days": 2}}; {"name": "now", "parameters": {}}',
        "",
        "",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "llama3_json",
        '<|python_tag|>get_weather.call(city="Rome", days=2)',
        "",
        "",
        [("get_weather", ROME)],
    ),
    (
        "pythonic",
        "[get_weather(city='Rome', days=2), now()]",
        "",
        "",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "pythonic",
        '<|python_start|>[get_weather(city="R\\u00f6m \\U0001f600 \\ud83d\\ude00 \\x41\\q", '
        "hours=[1, 2.5, (True, None)], metric=false)]<|python_end|>",
        "",
        "",
        [
            (
                "get_weather",
                {"city": "Röm 😀 😀 A\\q", "hours": [1, 2.5, [True, None]], "metric": False},
            )
        ],
    ),
    (
        "pythonic",
        "Both.\n<function_calls>\nget_weather(city='Rome', days=2)\nnow()\n</function_calls>",
        "",
        "Both.",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "pythonic",
        "<think>Hm.</think>Look.<|tool_call_start|>[get_weather(city='Ro\nme', "
        'hours=[1, {"a": null}])]<|tool_call_end|>Done.',
        "Hm.",
        "Look.Done.",
        [("get_weather", {"city": "Ro\nme", "hours": [1, {"a": None}]})],
    ),
    (
        "mistral",
        'Look.[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}, '
        '"id": "Ab3dE6gH9"}, {"name": "now", "arguments": {}}]',
        "",
        "Look.",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "mistral",
        '[THINK]Hm.[/THINK][TOOL_CALLS]get_weather[CALL_ID]Ab3dE6gH9[ARGS]{"city": "Rome", '
        '"days": 2}[TOOL_CALLS]now[ARGS]{}',
        "Hm.",
        "",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "deepseek",
        f"Look.{DS}{DS_CALL}function{SEP}get_weather\n```json\n"
        f'{{"city": "Rome", "days": 2}}\n```{DS_END}\n{DS_CALL}function{SEP}now\n'
        f"```json\n{{}}\n```{DS_END}{DS_STOP}",
        "",
        "Look.",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "deepseek",
        f'Hm.</think>{DS}{DS_CALL}get_weather{SEP}{{"city": "Rome", "days": 2}}{DS_END}'
        f"{DS_CALL}now{SEP}{{}}{DS_END}{DS_STOP}",
        "Hm.",
        "",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "glm",
        f"\n<think>Hm.</think>\nLook.\n<tool_call>get_weather\n{GLM_CITY}{GLM_DAYS}</tool_call>\n"
        "<tool_call>now\n</tool_call>",
        "Hm.",
        "Look.",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "glm",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>\nRome </arg_value>"
        "<arg_key>hours</arg_key><arg_value>[1, 2]</arg_value></tool_call>"
        "<tool_call>now</tool_call>",
        "",
        "",
        [("get_weather", {"city": "\nRome ", "hours": [1, 2]}), ("now", {})],
    ),
    (
        "kimi_k2",
        "Look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Rome", "days": 2}<|tool_call_end|>'
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "",
        "Look.",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Rome", "days": 2}<|call|>',
        "Hm.",
        "I look.",
        [("get_weather", ROME)],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Rain.",
        "Hm.",
        "Rain.",
        [],
    ),
    (
        "harmony",
        " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        "",
        "",
        [("now", {})],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
        "It rains.<|return|>",
        "Hm.",
        "It rains.",
        [],
    ),
    (
        "xml",
        'Look.\n<call name="get_weather">\n<arg name="city">Rome</arg>\n<arg name="days">2</arg>\n'
        '</call>\n<call name="now"></call>',
        "",
        "Look.",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "minimax_m2",
        "<think>Hm.</think>\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n"
        '<parameter name="city">Rome</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        "Hm.",
        "",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "gemma",
        '<|channel>thought\nHm.\n<channel|>Look.<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,'
        "days:2,metric:true,zip:null}<tool_call|><|tool_call>call:now{}<tool_call|>",
        "Hm.",
        "Look.",
        [("get_weather", {**ROME, "metric": True, "zip": None}), ("now", {})],
    ),
    (
        "gemma",
        "<start_function_call>call:get_weather{city:<escape>Ro, {me}<escape>,hours:[1,{a:"
        "<escape>b<escape>}]}<end_function_call>",
        "",
        "",
        [("get_weather", {"city": "Ro, {me}", "hours": [1, {"a": "b"}]})],
    ),
    (
        "phi4_mini",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}, '
        '{"name": "now", "arguments": {}}]<|/tool_call|>',
        "",
        "",
        [("get_weather", ROME), ("now", {})],
    ),
    (
        "phi4_mini",
        'functools[{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}]',
        "",
        "",
        [("get_weather", ROME)],
    ),
    (
        "command_r7b",
        f"<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {R7B},\n    "
        '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        "Hm.",
        "",
        [("get_weather", ROME), ("now", {})],
    ),
    ("command_r7b", "<|START_RESPONSE|>It rains.<|END_RESPONSE|>", "", "It rains.", []),
    (
        "atem",
        ' to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|>'
        '<atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Rome</atem:parameter>\n'
        '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
        "<|eom|><|start|>assistant to=user<|message|>Wait.<|eot|>",
        "Hm.",
        "Wait.",
        [("get_weather", ROME)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "reasoning", "said", "called"), WIRE)
def test_what_models_write_is_read(
    name: str, text: str, reasoning: str, said: str, called: CALLED
) -> None:
    calls = tuple(
        ToolCall(name=tool, arguments=arguments, id=f"call_{i}")
        for i, (tool, arguments) in enumerate(called)
    )
    assert FORMATS[name]().parse_text(text, TOOLS) == AssistantTurn(
        text=said, reasoning=reasoning, calls=calls
    )


def test_every_format_has_an_example() -> None:
    assert {name for name, *_ in WIRE} == set(FORMATS)


@pytest.mark.parametrize("text", ['{"name": "Ada"}', "[f(x=1)]", 'functools[{"name": "f"}]'])
def test_without_tools_what_no_marker_announces_is_text(text: str) -> None:
    for name in ("llama3_json", "pythonic", "phi4_mini"):
        assert FORMATS[name]().parse_text(text, ()) == AssistantTurn(text=text)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("llama3_json", '{"name": "now", "parameters": {}, "id": 3}', "malformed"),
        ("llama3_json", "<|python_tag|>import os", "unclosed"),
        ("llama3_json", '{"name": "now", "parameters": {}, "arguments": {}}', "malformed"),
        ("pythonic", "[get_weather('Rome')]", "malformed"),
        ("pythonic", "[get_weather(city=name)]", "malformed"),
        ("pythonic", "[get_weather(city='a' 'b')]", "malformed"),
        ("pythonic", "[get_weather(city=f'a')]", "malformed"),
        ("pythonic", "[get_weather(days=1+1)]", "malformed"),
        ("pythonic", "[get_weather(days=02134)]", "malformed"),
        ("pythonic", "[get_weather(days=__import__('os').getpid())]", "malformed"),
        ("pythonic", "[get_weather(city='\\ud800')]", "malformed"),
        ("pythonic", "[get_weather(city='\\UFFFFFFFF')]", "malformed"),
        ("pythonic", "[get_weather(**{})]", "malformed"),
        ("pythonic", "[get_weather(hours={1: 2})]", "malformed"),
        ("mistral", '[TOOL_CALLS][{"name": "now", "arguments": []}]', "malformed"),
        ("mistral", "[TOOL_CALLS]now[ARGS][1]", "unclosed"),
        ("mistral", '[TOOL_CALLS][{"arguments": {}}]', "malformed"),
        ("mistral", "now[ARGS]{}", "unclosed"),
        ("mistral", "[TOOL_CALLS][7]", "malformed"),
        ("kimi_k2", "<|tool_call_begin|>functions.now:0{}<|tool_call_end|>", "malformed"),
        ("glm", "<tool_call></tool_call>", "malformed"),
        ("glm", "<tool_call>get_weather<arg_key>days</arg_key>2</tool_call>", "malformed"),
        ("qwen3_coder", '<tool_call>\n{"name": "now"}\n</tool_call>', "malformed"),
        ("gemma", "<|tool_call>call:get_weather{city:Rome}<tool_call|>", "malformed"),
        ("gemma", '<|tool_call>{"name": "now"}<tool_call|>', "malformed"),
        ("harmony", " to=functions.now<|channel|>commentary<|message|>now()<|call|>", "malformed"),
        ("harmony", " to=python<|channel|>analysis<|message|>{}<|call|>", "unknown_tool"),
        ("command_r7b", '<|START_ACTION|>{"tool_name": "now"}<|END_ACTION|>', "malformed"),
    ],
)
def test_what_is_no_call_of_the_family_is_an_error(name: str, text: str, reason: str) -> None:
    (error,) = FORMATS[name]().parse_text(text, TOOLS).calls
    assert not isinstance(error, ToolCall)
    assert error.reason.value == reason
