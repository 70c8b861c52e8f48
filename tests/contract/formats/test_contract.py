"""What every format promises: one table of cases, the same verdicts."""

import json
import time
from functools import cache
from itertools import chain

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentrl.tokens import ToolFormat
from agentrl.tokens.formats import FORMATS
from agentrl.tokens.formats.reader import MAX_CALLS
from agentrl.tokens.formats.scan import MAX_CHARS, MAX_DEPTH
from agentrl.types import AssistantTurn, CallError, Json, StopReason, ToolCall, ToolSchema

every_format = pytest.mark.parametrize("name", sorted(FORMATS))

TYPED = ToolSchema(
    name="typed",
    description="",
    parameters={
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "i": {"type": "integer"},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "l": {"type": "array"},
            "o": {"type": "object"},
            "e": {"enum": ["w", "a"]},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "text": {"type": ["string", "null"]},
            "none": {"type": "integer", "nullable": True},
            "aa": {},
        },
        "additionalProperties": False,
    },
)
OPEN = ToolSchema(name="open", description="", parameters={"type": "object"})
NEEDS = ToolSchema(
    name="needs",
    description="",
    parameters={"type": "object", "properties": {"i": {"type": "integer"}}, "required": ["i"]},
)
TOOLS = (TYPED, OPEN, NEEDS)
MARKERS = sorted(set(chain.from_iterable(made().markers for made in FORMATS.values())))


@cache
def made(name: str) -> ToolFormat:
    return FORMATS[name]()


def call(arguments: dict[str, Json], number: int = 0, tool: str = "typed") -> ToolCall:
    return ToolCall(name=tool, arguments=arguments, id=f"call_{number}")


def written(name: str, *calls: ToolCall) -> str:
    return made(name).render_calls(calls)


def parse(name: str, text: str, *, thinking: bool = False) -> AssistantTurn:
    return made(name).parse_text(text, TOOLS, thinking=thinking)


def verdicts(turn: AssistantTurn) -> list[object]:
    return [
        dict(found.arguments) if isinstance(found, ToolCall) else found.reason.value
        for found in turn.calls
    ]


STRINGS = [
    "",
    " ",
    "\n",
    "\n\nlines\n\n",
    "02134",
    "null",
    "True",
    '{"a": 1}',
    "[1, 2",
    "ü 😀 \u2028 漢字",
    'quotes " \' \'\'\' """ ` and \\ and \\" and \\n {[}] )',
    "def f():\n\tif x < 3:\n        return '\\n'\n",
    "f(a=1), g(); h()",
    "<b>bold</b> & &lt; </b>",
    "a</think>b<think>c",
]


@every_format
def test_strings_are_exact(name: str) -> None:
    for value in STRINGS:
        calls = (call({"s": value}), call({"i": 1}, 1))
        turn = parse(name, written(name, *calls))
        assert (turn.calls, turn.text) == (calls, "")


@every_format
def test_markers_of_all_formats_are_text_in_a_string(name: str) -> None:
    cannot_say = {"gemma": {'<|"|>', "<escape>"}}.get(name, set())
    for marker in MARKERS:
        for value in (marker, f"a {marker} b", f"\n{marker}\n"):
            calls = (call({"s": value}), call({"i": 1}, 1))
            found = parse(name, written(name, *calls)).calls
            if marker in cannot_say or _half_of_an_argument(name, value):
                assert all(one in calls for one in found if isinstance(one, ToolCall))
                assert found[-1] == calls[-1]
            else:
                assert found == calls, marker


def _half_of_an_argument(name: str, value: str) -> bool:
    """Formats that do not escape cannot write a text with the begin of an argument of theirs."""
    begins = {
        "glm": "<arg_key>",
        "minimax_m2": '<parameter name="',
        "qwen3_coder": "<parameter=",
        "xml": '<arg name="',
    }
    return name in begins and begins[name] in value


@every_format
def test_a_call_quoted_in_a_string_is_text(name: str) -> None:
    for other in sorted(FORMATS):
        quoted = written(other, call({"s": "x", "i": 2}), call({}, 1))
        if name == "gemma" == other:
            continue
        calls = (call({"s": f"Write {quoted} so."}), call({"i": 1}, 1))
        turn = parse(name, written(name, *calls))
        assert turn.calls == calls, other


VALUES: list[dict[str, Json]] = [
    {"i": -12, "n": 2.5, "b": True, "l": [1, "two", None, [True]], "o": {"a": {"b": [{}]}}},
    {"maybe": None},
    {"maybe": 3},
    {"none": None},
    {"text": None},
    {"text": "nothing"},
    {"n": 1e-7},
    {"e": "a"},
    {"aa": {"deep": [1, {"x": "y"}]}},
    {"l": [], "o": {}},
    {"o": {"é": "ü", "with space": "a\nb"}},
]


@every_format
def test_values_have_the_types_of_the_schema(name: str) -> None:
    for arguments in VALUES:
        (found,) = parse(name, written(name, call(arguments))).calls
        assert isinstance(found, ToolCall)
        assert repr(dict(found.arguments)) == repr(arguments)


DEEP: Json = json.loads("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))

BAD: list[tuple[str, ToolCall, str]] = [
    ("unknown", call({"s": "x"}, tool="typd"), "unknown_tool"),
    ("unknown without arguments", call({}, tool="shell"), "unknown_tool"),
    ("text for an integer", call({"i": "02134"}), "bad_arguments"),
    ("empty for an integer", call({"i": ""}), "bad_arguments"),
    ("fraction for an integer", call({"i": 1.5}), "bad_arguments"),
    ("boolean for an integer", call({"i": True}), "bad_arguments"),
    ("null for an integer", call({"i": None}), "bad_arguments"),
    ("object for a list", call({"l": {"a": 1}}), "bad_arguments"),
    ("not in the enum", call({"e": "x"}), "bad_arguments"),
    ("unexpected", call({"more": 1}), "bad_arguments"),
    ("missing", call({}, tool="needs"), "bad_arguments"),
    ("too deep", call({"l": DEEP}), "too_large"),
    ("too deep, untyped", call({"x": DEEP}, tool="open"), "too_large"),
    ("too large", call({"s": "x" * (MAX_CHARS + 1)}), "too_large"),
]


@every_format
def test_a_bad_call_is_an_error_between_its_neighbours(name: str) -> None:
    first, last = call({"s": "first"}), call({"s": "last"}, 2)
    for title, bad, reason in BAD:
        turn = parse(name, written(name, first, bad, last))
        expected = [{"s": "first"}, reason, {"s": "last"}]
        if title == "too large" and name in UNMARKED:
            expected.pop()  # A call that is too large is not followed to its end.
        assert verdicts(turn) == expected, title
        assert [found.id for found in turn.calls] == ["call_0", "call_1", "call_2"][: len(expected)]
        error = turn.calls[1]
        assert isinstance(error, CallError)
        assert error.message
        assert error.name in (bad.name, None)
        assert turn.text == ""


UNMARKED = {"pythonic", "phi4_mini", "command_r7b", "llama3_json"}
"""No marker stands between their calls."""


@every_format
def test_a_raw_line_break_in_a_string_is_refused_or_kept(name: str) -> None:
    calls = (call({"s": "first"}), call({"s": "a\nb"}), call({"s": "last"}))
    first, middle, last = verdicts(parse(name, written(name, *calls).replace("\\n", "\n")))
    assert (first, last) == ({"s": "first"}, {"s": "last"})
    assert middle in ({"s": "a\nb"}, "malformed")


@every_format
def test_an_argument_given_twice_is_malformed(name: str) -> None:
    calls = (call({"s": "first"}), call({"s": "1", "ss": "2"}, tool="open"), call({"i": 1}))
    text = written(name, *calls).replace("ss", "s", -1)
    assert "ss" not in text.replace("assistant", "")
    text = text.replace("asistant", "assistant").replace("<|mesage", "<|message")
    assert verdicts(parse(name, text)) == [{"s": "first"}, "malformed", {"i": 1}]


@every_format
def test_a_call_that_was_cut_off_is_unclosed(name: str) -> None:
    text = written(name, call({"s": "first"}), call({"s": "second and last"}))
    cut = text[: text.index("and last")]
    assert verdicts(parse(name, cut)) == [{"s": "first"}, "unclosed"]


@every_format
def test_a_call_that_was_cut_off_does_not_swallow_the_next(name: str) -> None:
    if name in UNMARKED:
        return
    broken = written(name, call({"l": [1, 2, 3]}))
    broken = broken[: broken.index("2, 3" if "2, 3" in broken else "2,3")]
    start = "<|start|>assistant" if name in ("harmony", "atem") else ""
    turn = parse(name, broken + start + written(name, call({"s": "next"})))
    assert verdicts(turn)[-1] == {"s": "next"}
    assert verdicts(turn)[:-1] in (["unclosed"], ["malformed"])


@every_format
def test_there_is_a_cap_on_calls(name: str) -> None:
    turn = parse(name, written(name, *[call({"i": 1})] * (MAX_CALLS + 5)))
    assert verdicts(turn) == [{"i": 1}] * MAX_CALLS + ["too_many"]


@every_format
@pytest.mark.parametrize("stop", [StopReason.STOP, StopReason.LENGTH])
def test_a_prefix_never_holds_an_altered_call(name: str, stop: StopReason) -> None:
    fmt = made(name)
    ends = (*fmt.ends, *fmt.noise)
    value = f"a {ends[0] if ends else ''} b\n"
    calls = (call({"s": value, "i": 12, "l": [1, -2.5]}), call({"i": 345, "s": "02134"}, 1))
    text = fmt.render_reasoning("Hm.") + fmt.render_calls(calls)
    assert fmt.parse_text(text, TOOLS).calls == calls
    for end in range(len(text)):
        turn = fmt.parse_text(text[:end], TOOLS, stop_reason=stop)
        complete = [found for found in turn.calls if isinstance(found, ToolCall)]
        assert complete == list(calls[: len(complete)])
        errors = [found for found in turn.calls if isinstance(found, CallError)]
        assert [error.reason.value for error in errors] in ([], ["unclosed"])
        assert turn.stop_reason is stop


@every_format
def test_thinking_is_cut_off_first(name: str) -> None:
    fmt = made(name)
    draft, good = written(name, call({"s": "draft"})), written(name, call({"i": 1}))
    draft = draft.replace("<|call|>", "").replace("<|eom|>", "")
    think, think_end = fmt.think
    turn = parse(name, fmt.render_reasoning(f"Maybe\n{draft}?") + good)
    assert verdicts(turn) == [{"i": 1}]
    assert turn.reasoning == f"Maybe\n{draft}?"
    assert turn.text == ""

    rest = fmt.render_reasoning("").partition(think_end)[2] + good
    turn = parse(name, f"Maybe\n{draft}?{think_end}{rest}", thinking=True)
    assert verdicts(turn) == [{"i": 1}]
    assert turn.reasoning == f"Maybe\n{draft}?"

    turn = parse(name, f"{think}Maybe\n{draft}?{think_end}{rest}", thinking=True)
    assert verdicts(turn) == [{"i": 1}]
    assert turn.reasoning == f"Maybe\n{draft}?"

    for text, thinking in ((f"{think}{draft}", False), (draft, True), (f"{think}{draft}", True)):
        turn = parse(name, text, thinking=thinking)
        assert (turn.calls, turn.text, turn.reasoning) == ((), "", draft.strip())


@every_format
def test_a_close_that_nothing_opened_makes_reasoning_of_what_is_before(name: str) -> None:
    if name in ("harmony", "atem"):
        return  # Their messages say themselves what they are.
    think_end = made(name).think[1]
    draft, good = written(name, call({"s": "draft"})), written(name, call({"i": 1}))
    turn = parse(name, f"Maybe\n{draft}?{think_end}\n{good}")
    assert turn.calls == (call({"i": 1}),)
    assert turn.reasoning == f"Maybe\n{draft}?"
    cut = draft[: draft.index("draft")]
    turn = parse(name, f"Maybe\n{cut} or so{think_end}\n{good}")
    assert turn.calls == (call({"i": 1}),)
    assert turn.reasoning == f"Maybe\n{cut} or so"


@every_format
def test_more_drafts_than_calls_may_be_made_are_reasoning_too(name: str) -> None:
    if name in ("harmony", "atem"):
        return
    drafts = written(name, *[call({"s": "draft"})] * (MAX_CALLS + 5))
    good = written(name, call({"i": 1}))
    turn = parse(name, f"{drafts}{made(name).think[1]}\n{good}")
    assert turn.calls == (call({"i": 1}),)
    assert turn.reasoning == drafts


@every_format
def test_text_stays_text(name: str) -> None:
    for text in ("", "The answer is 5 < 6.", '{"a": [1]}', "[1, 2](x) `f(x)`", "a\n\n- b\n"):
        assert parse(name, text) == AssistantTurn(text=text.strip())


@every_format
def test_text_before_the_calls_is_kept(name: str) -> None:
    if name in ("harmony", "atem"):
        head = {"harmony": "<|channel|>commentary", "atem": " to=user"}[name]
        end = made(name).ends[1 if name == "harmony" else 0]
        before = f"{head}<|message|>First this.{end}<|start|>assistant"
    else:
        before = "First this.\n"
    turn = parse(name, before + written(name, call({"i": 1}), call({"i": 2})))
    assert turn.text == "First this."
    assert verdicts(turn) == [{"i": 1}, {"i": 2}]


def parts(name: str) -> list[str]:
    fmt = made(name)
    text = written(name, call({"s": "x", "l": [1, "2"]}), call({"i": 1}))
    some = [text, text[: len(text) // 2], text[len(text) // 2 :], "\ud800", "typed", "\x00"]
    return [*fmt.markers, *some, *"{}[]()<>\"'\\:;,=. \n1ax", '"name"', "None", "call:"]


@every_format
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_any_text_gives_a_turn(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(parts(name)), max_size=30)))
    for thinking in (False, True):
        turn = parse(name, text, thinking=thinking)
        assert [found.id for found in turn.calls] == [f"call_{i}" for i in range(len(turn.calls))]


keys = st.text("abcé_", min_size=1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner),
    max_leaves=6,
)  # fmt: skip
typed_arguments = st.fixed_dictionaries(
    {},
    optional={
        "s": st.text(),
        "i": st.integers(),
        "n": st.floats(allow_nan=False, allow_infinity=False),
        "b": st.booleans(),
        "l": st.lists(json_values, max_size=3),
        "o": st.dictionaries(keys, json_values, max_size=3),
        "maybe": st.none() | st.integers(),
    },
)


@every_format
@given(arguments=st.lists(typed_arguments, min_size=1, max_size=3))
@settings(deadline=None, max_examples=20)
def test_what_is_written_is_read(name: str, arguments: list[dict[str, Json]]) -> None:
    # Gemma's marks of strings cannot stand in strings, nor other formats' begins of arguments.
    said = json.dumps(arguments, ensure_ascii=False).replace('\\"', '"')
    assume(not _half_of_an_argument(name, said))
    assume(name != "gemma" or not any(mark in said for mark in ('<|"|>', "<escape>")))
    calls = tuple(call(one, i) for i, one in enumerate(arguments))
    assert parse(name, written(name, *calls)).calls == calls


def floods(name: str) -> dict[str, str]:
    """What is repeated, by what stands before it once."""
    fmt = made(name)
    text = written(name, call({"s": "x", "l": [1]}), call({"i": 1}))
    opening = text[: text.index("x")]
    half = text[: text.index("l") + 3]
    inside = [*fmt.inner, *fmt.ends, "[", "{", "\\", "\n"]
    return {
        text: "",
        opening: "",
        half: "",
        "".join(fmt.think): "",
        fmt.think[1]: "",
    } | dict.fromkeys(inside, opening)


@every_format
def test_time_is_linear(name: str) -> None:
    for piece, before in floods(name).items():
        small, large = (before + piece * (size // len(piece)) for size in (75_000, 300_000))
        if seconds(name, large) > 0.1:
            slope = min(seconds(name, large) for _ in range(2)) / seconds(name, small)
            assert slope < 8, (before, piece)


def seconds(name: str, text: str) -> float:
    begin = time.thread_time()
    parse(name, text)
    return time.thread_time() - begin
