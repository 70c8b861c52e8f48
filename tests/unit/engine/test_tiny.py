"""The tiny model's folder: complete, small, deterministic, and tokenized as promised."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# safetensors and transformers are not fully typed.

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, LlamaConfig, PreTrainedTokenizerFast

from agentrl.engine.local.models import tiny
from agentrl.engine.local.models.tiny import make_tiny
from agentrl.engine.local.models.tiny_tokenizer import MARKERS, SPECIAL_TOKENS, VOCAB_SIZE

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "description": "The expression, such as 12 * 34.",
                }
            },
            "required": ["expression"],
        },
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def chat(folder: Path) -> PreTrainedTokenizerFast:
    return cast(PreTrainedTokenizerFast, PreTrainedTokenizerFast.from_pretrained(folder))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return [tokenizer.decode([i], skip_special_tokens=False) for i in ids]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def episode() -> list[dict[str, object]]:
    call = {"name": "calculator", "arguments": {"expression": "47 + 85"}}
    return [
        {"role": "system", "content": "Use the calculator, then reply with the number only."},
        {"role": "user", "content": "What is 47 + 85?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": "132"},
        {"role": "assistant", "content": "132"},
    ]


def render(
    chat: PreTrainedTokenizerFast, messages: list[dict[str, object]], *, prompt: bool = False
) -> str:
    text = chat.apply_chat_template(
        cast(list[dict[str, str]], messages),
        tools=[CALCULATOR],
        tokenize=False,
        add_generation_prompt=prompt,
    )
    assert isinstance(text, str)
    return text


def test_the_folder_is_complete_and_below_a_million_parameters(folder: Path) -> None:
    assert set(contents(folder)) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    }
    weights = load_file(folder / "model.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) < 1_000_000
    assert json.loads((folder / "config.json").read_bytes())["architectures"] == [
        "LlamaForCausalLM"
    ]
    config = AutoConfig.from_pretrained(folder)
    assert isinstance(config, LlamaConfig)
    assert (config.vocab_size, config.attention_dropout) == (VOCAB_SIZE, 0.0)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_only_other_weights(
    folder: Path, tmp_path: Path
) -> None:
    make_tiny(tmp_path / "again")
    make_tiny(tmp_path / "other", seed=1)
    assert contents(tmp_path / "again") == contents(folder)
    other, first = contents(tmp_path / "other"), contents(folder)
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


def test_a_folder_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(tiny, "_write_tiny_model", fail)
    with pytest.raises(OSError, match="disk full"):
        make_tiny(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(folder: Path) -> None:
    with pytest.raises(FileExistsError, match="exists; remove it"):
        make_tiny(folder)


def test_control_tokens_and_markers_are_one_id_each(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    for token in (*SPECIAL_TOKENS, *MARKERS):
        assert pieces(tokenizer, token) == [token]


@given(text=st.text())
@settings(max_examples=100)
def test_any_text_survives_encoding(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@given(number=st.integers(min_value=0), left=st.sampled_from([" ", '"', "", "a", "\n"]))
@settings(max_examples=50)
def test_each_digit_is_a_token_in_any_place(tokenizer: Tokenizer, number: int, left: str) -> None:
    digits = str(number)
    assert pieces(tokenizer, f"{left}{digits}.")[-len(digits) - 1 : -1] == list(digits)


def test_the_calculator_prompt_is_short(
    tokenizer: Tokenizer, chat: PreTrainedTokenizerFast
) -> None:
    prompt = render(chat, episode()[:2], prompt=True)
    assert len(tokenizer.encode(prompt, add_special_tokens=False).ids) <= 90


def test_transformers_loads_the_same_tokenizer(
    tokenizer: Tokenizer, chat: PreTrainedTokenizerFast
) -> None:
    text = render(chat, episode())
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert chat(text)["input_ids"] == expected
    assert (chat.eos_token, chat.pad_token, chat.bos_token) == (
        "<|im_end|>",
        "<|endoftext|>",
        None,
    )


def test_an_episode_renders_as_written_here(chat: PreTrainedTokenizerFast) -> None:
    _, _, turns = render(chat, episode()).partition("<|im_end|>\n")
    assert turns == (
        "<|im_start|>user\nWhat is 47 + 85?<|im_end|>\n"
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "calculator", "arguments": {"expression": "47 + 85"}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>132</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n132<|im_end|>\n"
    )


def test_the_preamble_is_the_system_text_and_one_schema_a_line(
    chat: PreTrainedTokenizerFast,
) -> None:
    head = render(chat, episode()).partition("<|im_end|>\n")[0].splitlines()
    assert head[:3] == [
        "<|im_start|>system",
        "Use the calculator, then reply with the number only.",
        "# Tools",
    ]
    assert [json.loads(line) for line in head[3:]] == [CALCULATOR["function"]]


def test_results_of_one_turn_share_one_user_turn(chat: PreTrainedTokenizerFast) -> None:
    results: list[dict[str, object]] = [{"role": "tool", "content": text} for text in ("1", "2")]
    before = episode()[:3]
    suffix = render(chat, before + results).removeprefix(render(chat, before))
    assert suffix == (
        "<|im_start|>user\n<tool_response>1</tool_response>\n"
        "<tool_response>2</tool_response><|im_end|>\n"
    )


def histories() -> Iterator[list[dict[str, object]]]:
    thinking: dict[str, object] = {
        "role": "assistant",
        "reasoning_content": "Add them.",
        "content": "132",
    }
    yield episode()
    yield [*episode()[:2], thinking, {"role": "user", "content": "And 1 + 2?"}, thinking]
    yield [*episode(), {"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}]


@pytest.mark.parametrize("messages", list(histories()))
def test_history_is_only_appended_to(
    chat: PreTrainedTokenizerFast, messages: list[dict[str, object]]
) -> None:
    for end in range(2, len(messages)):
        before, after = render(chat, messages[:end]), render(chat, messages[: end + 1])
        assert after.startswith(before)
        if messages[end]["role"] == "assistant":
            assert after.startswith(render(chat, messages[:end], prompt=True))


def test_an_unknown_role_is_refused(chat: PreTrainedTokenizerFast) -> None:
    with pytest.raises(jinja2.TemplateError, match="the role judge is none of"):
        render(chat, [{"role": "judge", "content": "no"}])
