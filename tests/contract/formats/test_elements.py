"""Each element of a list of calls is a call or an error, in order, whatever its neighbours are."""

# ruff: noqa: RUF001 - DeepSeek's markers are written with full-width bars

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tokens.formats import FORMATS
from agentrl.types import AssistantTurn, CallError, ToolCall, ToolSchema

TOOL = ToolSchema(
    name="f",
    description="",
    parameters={
        "type": "object",
        "properties": {"s": {"type": "string"}, "i": {"type": "integer"}},
        "required": ["i"],
    },
)
NO_OBJECTS = ["null", "true", "7", "-1.5e3", "word", '"text"', '"a, ] } \\" {"', "[]", "[[1, [2]]]"]


@dataclass(frozen=True, kw_only=True)
class Family:
    """How lists of calls are written."""

    name: str
    around: tuple[str, str] = ("", "")
    between: str = ""
    call: str
    """Of f, with the integer in place of `$`."""
    bad: Sequence[str]
    """Elements that are no calls."""
    cut: Sequence[str] = ()
    """The same without an end, so that one with a begin must follow."""

    def write(self, elements: Sequence[str]) -> str:
        """The list."""
        return self.around[0] + self.between.join(elements) + self.around[1]


def objects(name: str, arguments: str, more: str = "") -> tuple[str, list[str]]:
    """A call as a JSON object, and what is none."""
    call = f'{{{more}"{name}": "f", "{arguments}": {{"i": $}}}}'
    empty = f'"{arguments}": {{"i": 1}}'
    return call, [
        *NO_OBJECTS,
        "{}",
        f"[{call.replace('$', '1')}]",
        f"{{{empty}}}",
        f'{{"{name}": null, {empty}}}',
        f'{{"{name}": ["f"], {empty}}}',
        f'{{"{name}": "f", "{arguments}": null}}',
        f'{{"{name}": "f", "{arguments}": [{{"i": 1}}]}}',
        f'{{"{name}": "f", "{arguments}": {{"i": "1"}}}}',
        f'{{"{name}": "f", "{arguments}": {{"i": 1, "i": 2}}}}',
        f'{{"{name}": "f", "{arguments}": {{"i": 1;}}}}',
        f'{{"{name}": "f", "{arguments}": {{"i": <b>}}}}',
        f'{{"{name}": "f", "{arguments}": {{"i": [1, 2}}}}',
        f'{{"{name}": "f", "{arguments}": {{"i": 1, "s": "a\nb"}}}}',
        f'{{"{name}": "g", {empty}}}',
    ]


def between(begin: str, end: str, bodies: Sequence[str]) -> list[str]:
    """Bad elements between two markers, and good ones that lack the first."""
    return [f"{begin}{body}{end}" for body in bodies]


OBJECT, NO_OBJECT = objects("name", "arguments")
LLAMA, NO_LLAMA = objects("name", "parameters")
COHERE, NO_COHERE = objects("tool_name", "parameters", '"tool_call_id": "0", ')
PYTHON = [
    *["null", "7", "-1.5", "word", "'text, ] )'", "[]", "[f(i=1)]", "{'i': 1}", "(f(i=1), 2)"],
    *["-f(i=1)", "'a'+'b'", "[[f(i=1)], {2: 3}]", "x[1]", "f if 1 else g", "*f(i=1)", '"don\'t"'],
    *["f", "f(1)", "f(i=)", "f(i=1, i=2)", "f(i='1')", "f(**{})", "f()", "g(i=1)", "f.x(i=1)"],
]
KIMI, KIMI_ARGS, KIMI_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
DS, SEP, DS_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
HEAD, START = "<|channel|>commentary to=functions.f", "<|start|>assistant"
GLM = "<arg_key>i</arg_key><arg_value>$</arg_value>"
BODIES = [*NO_OBJECTS, "", "{}", "{", "f", "f(i=1)"]
TAGGED = ["", "null", "7", "word", '{"i": 1}']

FAMILIES = [
    Family(
        name="hermes",
        call=f"<tool_call>{OBJECT}</tool_call>",
        bad=[
            *between("<tool_call>", "</tool_call>", [*BODIES, *NO_OBJECT, f"[{OBJECT}]"]),
            '{"name": "f", "arguments": {"i": 1}}</tool_call>',
        ],
        cut=["<tool_call>", '<tool_call>{"name": "f", "arguments": {"i": 1}}'],
    ),
    Family(
        name="qwen3_coder",
        call="<tool_call><function=f><parameter=i>$</parameter></function></tool_call>",
        bad=[
            *between("<tool_call>", "</tool_call>", TAGGED),
            "<tool_call><function=f><parameter=i>x</parameter></function></tool_call>",
            "<tool_call><function=g></function></tool_call>",
            "<tool_call><function=f<parameter=i>1</parameter></function></tool_call>",
            "<tool_call><function=f><parameter=i>1</function></tool_call>",
            "<tool_call><parameter=i>1</parameter></function></tool_call>",
            "<function=f><parameter=i>1</parameter></function></tool_call>",
        ],
        cut=[
            "<tool_call><function=f>",
            "<tool_call><function=f><parameter=i>1",
            "<function=f><parameter=i>1</parameter></function>",
        ],
    ),
    Family(
        name="llama3_json", around=("<|python_tag|>", ""), between="; ", call=LLAMA, bad=NO_LLAMA
    ),
    Family(
        name="llama3_json",
        around=("[", "]"),
        between=", ",
        call=LLAMA,
        bad=[*NO_LLAMA, '{"a": 1}', '{"name": "x"}', f"[7, [{LLAMA}]]".replace("$", "1")],
    ),
    Family(
        name="llama3_json",
        around=("[\n  ", "\n]"),
        between=",\n  ",
        call='{"parameters": {"i": $}, "name": "f"}',
        bad=['{"a": {"b": [1]}}', '{"name": "x"}', "[7]", '"text"', "[[]]", "null"],
    ),
    Family(name="pythonic", around=("[", "]"), between=", ", call="f(i=$)", bad=PYTHON),
    Family(name="pythonic", around=("[\n", "\n]"), between=",\n", call="f(i=$)", bad=PYTHON),
    Family(
        name="pythonic",
        around=("<|python_start|>[", "]<|python_end|>"),
        between=",",
        call="f(i=$)",
        bad=PYTHON,
    ),
    Family(
        name="pythonic",
        around=("<function_calls>\n", "\n</function_calls>"),
        between="\n",
        call="f(i=$)",
        bad=[element for element in PYTHON if not element.startswith("[")],
    ),
    Family(name="mistral", around=("[TOOL_CALLS][", "]"), between=", ", call=OBJECT, bad=NO_OBJECT),
    Family(
        name="mistral",
        call='[TOOL_CALLS]f[ARGS]{"i": $}',
        bad=[
            *between("[TOOL_CALLS]f[ARGS]", "", BODIES),
            *between("[TOOL_CALLS]", "", ["", "f", 'f{"i": 1}', '[ARGS]{"i": 1}']),
            '[TOOL_CALLS]g[ARGS]{"i": 1}',
        ],
        cut=['[TOOL_CALLS]f[ARGS]{"i": ', "[TOOL_CALLS]f[CALL_ID]"],
    ),
    Family(
        name="deepseek",
        around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        call=f'{DS}f{SEP}{{"i": $}}{DS_END}',
        bad=[
            *between(f"{DS}f{SEP}", DS_END, BODIES),
            *between(DS, DS_END, ["", "f", 'f{"i": 1}', f'{SEP}{{"i": 1}}', f"{SEP}f\n{{}}"]),
            f'f{SEP}{{"i": 1}}{DS_END}',
            f'{DS}g{SEP}{{"i": 1}}{DS_END}',
        ],
        cut=[f'{DS}f{SEP}{{"i": 1}}', f"{DS}f", DS, "null"],
    ),
    Family(
        name="glm",
        call=f"<tool_call>f{GLM}</tool_call>",
        bad=[
            *between("<tool_call>", "</tool_call>", TAGGED),
            f"<tool_call>f{GLM.replace('$', 'x')}</tool_call>",
            f"<tool_call>g{GLM.replace('$', '1')}</tool_call>",
            f"f{GLM.replace('$', '1')}</tool_call>",
            "<tool_call>f<arg_key>i<arg_value>1</arg_value></tool_call>",
            "<tool_call>f<arg_key>i</arg_key><arg_value>1</tool_call>",
        ],
        cut=[
            GLM.replace("$", "1"),
            f"<tool_call>f{GLM.replace('$', '1')}",
            "<tool_call>f<arg_key>i</arg_key><arg_value>1",
            "<tool_call>f",
            "<tool_call>",
        ],
    ),
    Family(
        name="kimi_k2",
        around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        call=f'{KIMI}functions.f:0{KIMI_ARGS}{{"i": $}}{KIMI_END}',
        bad=[
            *between(f"{KIMI}functions.f:0{KIMI_ARGS}", KIMI_END, BODIES),
            *between(KIMI, KIMI_END, ["", "f", 'functions.f:0{"i": 1}', f'{KIMI_ARGS}{{"i": 1}}']),
            f'functions.f:0{KIMI_ARGS}{{"i": 1}}{KIMI_END}',
            f'{KIMI}functions.g:0{KIMI_ARGS}{{"i": 1}}{KIMI_END}',
        ],
        cut=[f'{KIMI}functions.f:0{KIMI_ARGS}{{"i": 1}}', f"{KIMI}functions.f:0", KIMI, "null"],
    ),
    Family(
        name="harmony",
        between=START,
        call=f'{HEAD}<|message|>{{"i": $}}<|call|>',
        bad=[
            *between(f"{HEAD}<|message|>", "<|call|>", BODIES),
            *between("", "<|call|>", [f'{HEAD}{{"i": 1}}', HEAD, f"{HEAD} <|constrain|>json"]),
            f'{HEAD}{{"i": 1}}',
            f'{HEAD}{{"i": 1}}<|end|>',
            'commentary to=functions.f {"i": 1}',
            '<|channel|>commentary<|message|>{"i": 1}<|call|>',
            '<|channel|>final<|message|>{"i": 1}<|call|>',
            '<|channel|>commentary to=functions.<|message|>{"i": 1}<|call|>',
            '<|channel|>commentary to=functions.g<|message|>{"i": 1}<|call|>',
            f'{HEAD}<|message|><|message|>{{"i": 1}}<|call|>',
        ],
    ),
    Family(
        name="xml",
        call='<call name="f"><arg name="i">$</arg></call>',
        bad=[
            *between('<call name="f">', "</call>", TAGGED),
            '<call name="f"><arg name="i">x</arg></call>',
            '<call name="g"><arg name="i">1</arg></call>',
            '<call name="f><arg name="i">1</arg></call>',
            '<call name="f"><arg name="i">1</call>',
            '<arg name="i">1</arg></call>',
        ],
        cut=['<call name="f">', '<call name="f', '<call name="f"><arg name="i">1'],
    ),
    Family(
        name="minimax_m2",
        around=("<minimax:tool_call>", "</minimax:tool_call>"),
        between="\n",
        call='<invoke name="f"><parameter name="i">$</parameter></invoke>',
        bad=[
            *between('<invoke name="f">', "</invoke>", TAGGED),
            '<invoke name="f"><parameter name="i">x</parameter></invoke>',
            '<invoke name="f><parameter name="i">1</parameter></invoke>',
            '<invoke name="f"><parameter name="i">1</invoke>',
            '<parameter name="i">1</parameter></invoke>',
        ],
        cut=["null", '{"name": "f"}', "word", '<invoke name="f">', '<invoke name="f'],
    ),
    Family(
        name="gemma",
        call="<|tool_call>call:f{i:$}<tool_call|>",
        bad=[
            *between("<|tool_call>", "<tool_call|>", [*TAGGED, "call:f", "f{i:1}", "call:f{i:}"]),
            *between("<|tool_call>call:f", "<tool_call|>", ["{i:1,i:2}", "{i:[1}", "{i:1}}", "{}"]),
            "call:f{i:1}<tool_call|>",
            "<|tool_call>call:g{i:1}<tool_call|>",
        ],
        cut=["<|tool_call>call:f{i:1}", "<|tool_call>call:f{i:", "<|tool_call>call"],
    ),
    Family(
        name="phi4_mini",
        around=("<|tool_call|>[", "]<|/tool_call|>"),
        between=", ",
        call=OBJECT,
        bad=NO_OBJECT,
    ),
    Family(name="phi4_mini", around=("functools[", "]"), between=",", call=OBJECT, bad=NO_OBJECT),
    Family(
        name="command_r7b",
        around=("<|START_ACTION|>[\n", "\n]<|END_ACTION|>"),
        between=",\n",
        call=COHERE,
        bad=NO_COHERE,
    ),
    Family(
        name="atem",
        around=(" to=f<|message|><atem:function_calls>", "</atem:function_calls><|eom|>"),
        call='<atem:invoke name="f"><atem:parameter name="i">$</atem:parameter></atem:invoke>',
        bad=[
            *between('<atem:invoke name="f">', "</atem:invoke>", TAGGED),
            '<atem:invoke name="f"><atem:parameter name="i">x</atem:parameter></atem:invoke>',
            '<atem:invoke name="g"><atem:parameter name="i">1</atem:parameter></atem:invoke>',
            '<atem:parameter name="i">1</atem:parameter></atem:invoke>',
        ],
        cut=["null", '{"i": 1}', '<atem:invoke name="f">'],
    ),
]
families = pytest.mark.parametrize(
    "family", FAMILIES, ids=[f"{f.name} {f.around[0].strip()}".strip() for f in FAMILIES]
)


def parse(family: Family, text: str) -> AssistantTurn:
    return FORMATS[family.name]().parse_text(text, [TOOL])


def verdicts(turn: AssistantTurn) -> list[object]:
    """The integers of calls, and "error"."""
    return ["error" if isinstance(c, CallError) else c.arguments["i"] for c in turn.calls]


def test_every_format_is_here() -> None:
    assert {family.name for family in FAMILIES} == set(FORMATS)


@families
def test_a_bad_element_is_one_error_and_its_neighbours_are_calls(family: Family) -> None:
    one, two = (family.call.replace("$", str(i)) for i in (1, 2))
    for bad in (*family.bad, *family.cut):
        turn = parse(family, family.write([one, bad, two]))
        assert verdicts(turn) == [1, "error", 2], bad
        assert (turn.calls[0], turn.calls[2]) == (expected(1, 0), expected(2, 2))


def expected(number: int, place: int) -> ToolCall:
    return ToolCall(name="f", arguments={"i": number}, id=f"call_{place}")


@families
@given(data=st.data())
@settings(deadline=None, max_examples=25)
def test_as_many_calls_and_errors_come_out_as_elements_go_in(
    family: Family, data: st.DataObject
) -> None:
    good: st.SearchStrategy[list[int | str]] = st.integers(-(10**9), 10**9).map(lambda i: [i])
    bad = st.sampled_from(family.bad).map(lambda text: [text])
    cut = st.sampled_from(family.cut or family.bad).map(lambda text: [text, 1])
    drawn = data.draw(st.lists(good | bad | cut, min_size=1, max_size=12))
    chosen = list(chain.from_iterable(drawn))
    if family.around[0].startswith("["):
        # Nothing but a call, wherever it stands, says that a list without a marker is one of calls.
        chosen.insert(data.draw(st.integers(0, len(chosen))), 0)
    calls = [c if isinstance(c, str) else family.call.replace("$", str(c)) for c in chosen]
    turn = parse(family, family.write(calls))
    assert verdicts(turn) == ["error" if isinstance(c, str) else c for c in chosen], calls


@families
def test_a_list_of_nothing_but_bad_elements_is_not_an_answer(family: Family) -> None:
    for bad in (*family.bad, *family.cut):
        if not family.around[0].startswith("["):
            assert "error" in verdicts(parse(family, family.write([bad]))), bad


PAIR, GEMMA = ("<tool_call>", "</tool_call>"), ("<|tool_call>", "<tool_call|>")
ONE, TWO, THREE = (OBJECT.replace("$", str(i)) for i in (1, 2, 3))
L_ONE, L_TWO = (LLAMA.replace("$", str(i)) for i in (1, 2))
C_ONE, C_TWO = (COHERE.replace("$", str(i)) for i in (1, 2))
F_ONE, F_TWO = (f"<function=f><parameter=i>{i}</parameter></function>" for i in (1, 2))
M_ONE, M_TWO = (f'<invoke name="f"><parameter name="i">{i}</parameter></invoke>' for i in (1, 2))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("hermes", f"<tool_call>{ONE}{TWO}</tool_call>", "EE"),
        ("hermes", f"{PAIR[0]}{ONE},\n{TWO} {THREE}{PAIR[1]}{PAIR[0]}{ONE}{PAIR[1]}", "EEE1"),
        ("hermes", f"<tool_call>{ONE}{TWO}", "EE"),
        ("qwen3_coder", f"{PAIR[0]}{F_ONE}\n{F_TWO}{PAIR[1]}{PAIR[0]}{F_ONE}{PAIR[1]}", "EE1"),
        ("qwen3_coder", F_ONE + F_TWO, "EE"),
        ("qwen3_coder", f"{F_ONE}{F_TWO}</tool_call><tool_call>{F_ONE}</tool_call>", "EE1"),
        ("qwen3_coder", "<parameter=i>1</parameter>", "E"),
        ("minimax_m2", M_ONE + M_TWO, "EE"),
        ("minimax_m2", '<parameter name="i">1</parameter>', "E"),
        ("gemma", f"{GEMMA[0]}call:f{{i:1}}call:f{{i:2}}{GEMMA[1]}", "EE"),
        ("kimi_k2", f'f{KIMI_ARGS}{{"i": 1}} f{KIMI_ARGS}{{"i": 2}}', "EE"),
        ("deepseek", f'f{SEP}{{"i": 1}} f{SEP}{{"i": 2}}', "EE"),
        ("mistral", 'f[ARGS]{"i": 1} f[ARGS]{"i": 2}[TOOL_CALLS]f[ARGS]{"i": 3}', "EE3"),
        ("mistral", f"[TOOL_CALLS][{ONE}][{TWO}]", "12"),
        ("mistral", f"[TOOL_CALLS][{ONE}],\n[{TWO}, {THREE}]", "123"),
        ("phi4_mini", f"<|tool_call|>[{ONE}] [{TWO}]<|/tool_call|>", "12"),
        ("phi4_mini", f"functools[{ONE}] functools[{TWO}]", "12"),
        ("command_r7b", f"<|START_ACTION|>[{C_ONE}]\n[{C_TWO}]<|END_ACTION|>", "12"),
        ("pythonic", "[f(i=1)] [f(i=2)]", "12"),
        ("pythonic", "[f(i=1)], [f(i=2), null]", "12E"),
        ("llama3_json", f"{L_ONE}, {L_TWO}", "12"),
        ("llama3_json", f"[{L_ONE}, null, {L_TWO}]", "1E2"),
        ("llama3_json", f"<|python_tag|>[{L_ONE}]; {L_TWO}", "E2"),
        ("llama3_json", '{"type": "function", ' + L_ONE[1:], "1"),
        ("llama3_json", "<|python_tag|>f.call(i=1)\nf.call(i=2), f.call(i=3)", "123"),
        ("llama3_json", f"<|python_tag|>{L_ONE} f.call(i=2)", "12"),
    ],
)  # fmt: skip
def test_what_follows_a_call_or_a_list_is_not_lost(name: str, text: str, expected: str) -> None:
    turn = FORMATS[name]().parse_text(text, [TOOL])
    assert "".join("E" if v == "error" else str(v) for v in verdicts(turn)) == expected


@pytest.mark.parametrize(
    ("name", "call"), [("llama3_json", L_ONE), ("pythonic", "[f(i=1)]")], ids=["object", "list"]
)
def test_words_behind_a_call_are_text(name: str, call: str) -> None:
    for words in ("and so on", "[a link](x)", "[1]", "see g.call(i=2)"):
        turn = FORMATS[name]().parse_text(f"{call} {words}", [TOOL])
        assert (verdicts(turn), turn.text) == ([1], words)
