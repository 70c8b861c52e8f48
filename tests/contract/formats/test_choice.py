"""Which format a chat template writes, over a corpus of real templates."""

import json
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from agentrl.errors import ConfigError
from agentrl.tokens import Tokenizer, choose_format
from agentrl.tokens.formats import FORMATS
from agentrl.tokens.jinja import ChatTemplate
from agentrl.types import Json, ToolCall, ToolSchema

EXPECTED = {
    "deepseek": "deepseek_r1_distill deepseekv3",
    "gemma": "diffusion_gemma gemma4 gemma4_v2 gemma4_v3 gemma4_v4 gemma4_v5",
    "glm": "glm4moe",
    "harmony": "gptoss",
    "pythonic": "lfm2 lfm2_2_5 lfm2_2_5_v2 lfm2_2_5_vl lfm2_v2",
    "llama3_json": "llama3_1 llama3_2",
    "atem": "muse_glimmer",
    "qwen3_coder": "nemotron_3_5_lightning nemotron_3_nano nemotron_3_super nemotron_3_ultra "
    "qwen3_5_nothink qwen3_5_think qwen3_6 qwen3_8",
    "hermes": "qwen2_5 qwen3 qwen3_instruct_2507 qwen3_vl",
}
WITHOUT_TOOLS = (
    "cohere cohere2 gemma gemma3 idefics3 llama3 llava_next phi3 phi3_5 qwen2_5_vl smolvlm"
)
"""Get Hermes, with instructions."""


@cache
def templates() -> dict[str, Path]:
    files = distribution("trl").files or []
    return {
        file.stem: Path(str(file.locate()))
        for file in files
        if file.parent.name == "chat_templates" and file.suffix == ".jinja"
    }


def family(stem: str) -> str:
    return stem.removesuffix("_training")


def test_the_corpus_is_decided() -> None:
    expected = {stem: name for name, stems in EXPECTED.items() for stem in stems.split()}
    expected |= dict.fromkeys(WITHOUT_TOOLS.split(), "hermes")
    assert len(templates()) >= 72
    found = {stem: chosen(path.read_text("utf-8")) for stem, path in templates().items()}
    assert found == {stem: expected[family(stem)] for stem in found}
    assert {family(stem) for stem in found} == set(expected)


def chosen(source: str) -> str:
    """A whole tokenizer for each template would take long; only the template's text is asked."""
    for_tools = SimpleNamespace(template=SimpleNamespace(source=source))
    tokenizer = SimpleNamespace(for_tools=for_tools, added_tokens={})
    return choose_format(cast("Tokenizer", tokenizer)).name


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ tools }}<|tool_call_begin|>{{ x }}<|tool_call_argument_begin|>", "kimi_k2"),
        ("[AVAILABLE_TOOLS][TOOL_CALLS][ARGS]", "mistral"),
        ("<minimax:tool_call><invoke name=", "minimax_m2"),
        ("<|tool|>{{ tools }}<|/tool|>", "phi4_mini"),
        ("<|START_ACTION|>{{ tool_calls }}", "command_r7b"),
        ("<start_function_call>call:", "gemma"),
        ("<function_calls>{{ tool_calls }}", "pythonic"),
    ],
)
def test_families_beyond_the_corpus(source: str, expected: str) -> None:
    assert chosen(source) == expected


def test_an_unclear_template_is_an_error_that_says_what_it_may_be(qwen_like: Path) -> None:
    with pytest.raises(ConfigError, match=r"the formats hermes, mistral; name the one"):
        chosen("{{ tool_calls }}<tool_call>[TOOL_CALLS]")
    with pytest.raises(ConfigError, match="not built in; name the format") as caught:
        chosen("{{ messages[0].tool_calls }} [CALL]")
    assert all(name in str(caught.value) for name in FORMATS)
    definition = (qwen_like / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer = Tokenizer(definition, "<tool_call>[TOOL_CALLS]")
    assert choose_format(tokenizer, "mistral").name == "mistral"


TOOL = ToolSchema(
    name="probe",
    description="Probe.",
    parameters={
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "i": {"type": "integer"},
            "b": {"type": "boolean"},
            "n": {"type": ["string", "null"]},
            "l": {"type": "array", "items": {}},
            "o": {"type": "object", "properties": {}},
        },
    },
)
ALL: dict[str, Json] = {
    "s": 'a "d" é\n </tool_call> x',
    "i": 12,
    "b": True,
    "l": [1, "two", {"k": False}],
    "o": {"k": "v"},
    "n": None,
}
ONE_CALL = {"gptoss", "llama3_1", "llama3_2"}
"""Their templates write one call a turn."""
AS_TEXT = {"deepseek_r1_distill", "deepseekv3"}
"""Their templates take the arguments as JSON text."""


def test_what_the_templates_write_is_read() -> None:
    seen = 0
    for stem, path in sorted(templates().items()):
        source = path.read_text(encoding="utf-8")
        name = next((n for n, stems in EXPECTED.items() if family(stem) in stems.split()), None)
        if name is None or "tool_calls" not in source or stem != family(stem):
            continue  # What is for training writes the same.
        calls = (
            ToolCall(name="probe", arguments=ALL, id="call_0"),
            ToolCall(name="probe", arguments={"s": "02134"}, id="call_1"),
        )[: 1 if family(stem) in ONE_CALL else 2]
        body = assistant(ChatTemplate(source, {"bos_token": "<s>"}), stem, calls)
        assert FORMATS[name]().parse_text(body, [TOOL]).calls == calls, stem
        seen += 1
    assert seen >= 26


def assistant(template: ChatTemplate, stem: str, calls: tuple[ToolCall, ...]) -> str:
    """What the template writes for an assistant's message with `calls`."""
    user = {"role": "user", "content": "Hi"}
    as_text = stem in AS_TEXT
    functions = [
        {
            "name": call.name,
            "arguments": json.dumps(call.arguments) if as_text else dict(call.arguments),
        }
        for call in calls
    ]
    message = {
        "role": "assistant",
        "content": None if "deepseek" in stem else "",
        "tool_calls": [
            {"id": f"call_{i}", "type": "function", "function": function}
            for i, function in enumerate(functions)
        ],
    }
    tools = [TOOL.to_json()]
    head = template.render([user], tools, add_generation_prompt=False)
    whole = template.render([user, message], tools, add_generation_prompt=False)
    return whole[len(head) :]
