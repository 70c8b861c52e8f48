"""Rendering against transformers, suffix by suffix, and with hostile content."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.errors import ConfigError
from agentrl.tokens import Hermes, Renderer, Tokenizer
from agentrl.tokens.render import Reasoning
from agentrl.types import AssistantTurn, Message, StopReason, ToolCall, ToolSchema
from tests.chat import (
    CHATML_LIKE,
    MakeFolder,
    load,
    of_assistant,
    result,
    same_fixture,
    user,
)
from tests.tokenizers import TEMPLATES


@cache
def oracle(folder: Path) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    return cast("PreTrainedTokenizerFast", tokenizer)


def as_dict(message: Message) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        entry["tool_calls"] = [
            {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for c in message.tool_calls
        ]
    return entry


def expected_ids(
    folder: Path, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
) -> list[int]:
    ids = oracle(folder).apply_chat_template(  # pyright: ignore[reportUnknownMemberType]
        [as_dict(message) for message in messages],
        tools=[tool.to_json() for tool in tools] or None,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    return cast("list[int]", ids)


def add(a: int, b: int, index: int = 0) -> ToolCall:
    return ToolCall(name="add", arguments={"a": a, "b": b}, id=f"call_{index}")


CONVERSATIONS = [
    [user("What is 12 plus 345?")],
    [
        Message(role="system", content="  Be exact.\n"),
        user(" Hi \n\n"),
        of_assistant("Hello."),
        user("?"),
    ],
    [
        user("Zähle 😀"),
        of_assistant("\n eins\n"),
        user("a < b |> c"),
        of_assistant("ok"),
        user("end"),
    ],
]
TOOL_CONVERSATIONS = [
    [user("Add."), of_assistant("", add(1, 2)), result("3"), of_assistant("3."), user("Thanks")],
    [
        Message(role="system", content="Use tools."),
        user("Add twice."),
        of_assistant("Both:", add(1, 2), add(3, 4, 1)),
        result("3"),
        result(' {"value": "ü"}\n', 1),
        of_assistant("", add(5, 6)),
        result("11"),
    ],
]


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_conversations_have_the_ids_of_transformers(folder: Path, messages: list[Message]) -> None:
    assert Renderer(load(folder)).prompt(messages) == expected_ids(folder, messages)


@pytest.mark.parametrize("messages", TOOL_CONVERSATIONS)
def test_tool_conversations_have_the_ids_of_transformers(
    qwen_like: Path, tools: Sequence[ToolSchema], messages: list[Message]
) -> None:
    renderer = Renderer(load(qwen_like), tools)
    assert renderer.tools_in_template
    assert renderer.prompt(messages) == expected_ids(qwen_like, messages, tools)


@given(contents=st.lists(st.text(max_size=12), min_size=1, max_size=5))
@same_fixture
def test_any_text_without_control_tokens_has_the_ids_of_transformers(
    qwen_like: Path, contents: list[str]
) -> None:
    assume(not load(qwen_like).control_pattern.search("|".join(contents)))
    messages = [user(c) if i % 2 == 0 else of_assistant(c) for i, c in enumerate(contents)]
    renderer = Renderer(load(qwen_like))
    assert renderer.prompt(messages) == expected_ids(qwen_like, messages)


def play(renderer: Renderer, steps: Sequence[tuple[AssistantTurn, list[Message]]]) -> list[int]:
    """The ids that a record would hold after these turns."""
    ids = renderer.prompt([user("Begin.")])
    for turn, messages in steps:
        ids += renderer.assistant(turn)
        ids += renderer.observation(messages)
    return ids


def test_five_turns_by_suffix_are_the_whole_conversation(
    folder: Path, tools: Sequence[ToolSchema]
) -> None:
    renderer = Renderer(load(folder), tools)
    steps: list[tuple[AssistantTurn, list[Message]]] = [
        (AssistantTurn(text="Let me see.", calls=(add(1, 2),)), [result("3")]),
        (AssistantTurn(calls=(add(1, 2), add(3, 4, 1))), [result("3"), result("7", 1)]),
        (AssistantTurn(text="So what?"), [user("Go on.")]),
        (AssistantTurn(calls=(add(1, 2),)), [result("3"), user("Hurry.")]),
        (AssistantTurn(text="Done."), [user("Bye.")]),
    ]
    conversation = [user("Begin.")]
    for turn, messages in steps:
        conversation += [turn.message(), *messages]
    by_suffix = play(renderer, steps)
    assert by_suffix == renderer.prompt(conversation)
    stop, newline = load(folder).controls["<|im_end|>"], load(folder).encode("\n", specials=False)
    stops = [i for i, number in enumerate(by_suffix) if number == stop]
    assert len(stops) >= 11
    assert all(by_suffix[i + 1 : i + 2] == newline for i in stops)


def test_two_results_are_one_user_turn(folder: Path, tools: Sequence[ToolSchema]) -> None:
    tokenizer = load(folder)
    renderer = Renderer(tokenizer, tools)
    if not renderer.profile.shows_calls:
        renderer = Renderer(tokenizer, tools, tool_results="user")
    text = tokenizer.decode(renderer.observation([result("3"), result("7", 1)]))
    assert text.startswith("\n<|im_start|>user\n")
    assert text.count("<|im_start|>user") == 1
    assert text.count("<tool_response>") == 2
    assert text.index("3") < text.index("7")
    assert text.endswith("<|im_start|>assistant\n")


def test_what_a_model_samples_parses_back(folder: Path, tools: Sequence[ToolSchema]) -> None:
    tokenizer = load(folder)
    turn = AssistantTurn(
        text="Now I write.",
        reasoning="Which tool? write.",
        calls=(
            ToolCall(name="write", arguments={"text": 'a "<tool_call>" é\n'}, id="call_0"),
            add(-1, 2, 1),
        ),
    )
    ids = Renderer(tokenizer, tools).assistant(turn)
    assert ids[-1] == tokenizer.controls["<|im_end|>"]
    parsed = Hermes(tokenizer).parse(ids, StopReason.STOP, tools)
    assert parsed == turn


def test_a_turn_cut_off_has_no_stop_token(qwen_like: Path) -> None:
    renderer = Renderer(load(qwen_like))
    whole = renderer.assistant(AssistantTurn(text="The answer is 5"))
    cut = renderer.assistant(AssistantTurn(text="The answer is 5", stop_reason=StopReason.LENGTH))
    assert whole[:-1] == cut
    assert whole[-1] in renderer.stop_ids


def test_stop_ids_are_found_in_the_template(folder: Path, make_folder: MakeFolder) -> None:
    assert Renderer(load(folder)).stop_ids == {2}
    other = make_folder(TERSE.replace("STOP", "<|im_end|>"), eos_token="<|endoftext|>")
    assert Renderer(load(other)).stop_ids == {0, 2}
    by_eos = make_folder(TERSE.replace("STOP", ""), eos_token="<|endoftext|>")
    assert Renderer(load(by_eos)).stop_ids == {0}
    assert Renderer(load(by_eos)).assistant(AssistantTurn(text="a"))[-1] == 0
    neither = make_folder(TERSE.replace("STOP", ""), eos_token=None)
    with pytest.raises(ConfigError, match="which token ends"):
        _ = Renderer(load(neither)).stop_ids


def test_a_stop_token_that_swallows_white_space_does_so_in_suffixes(
    make_folder: MakeFolder,
) -> None:
    folder = make_folder(CHATML_LIKE)
    definition = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    for token in definition["added_tokens"]:
        token["rstrip"] = token["content"] == "<|im_end|>"
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    renderer = Renderer(load(folder))
    suffix = renderer.observation([user("  Go on.")])
    assert suffix == load(folder).encode("[user]  Go on.[assistant]", specials=True)
    assert any("prefix-preserving" in line for line in renderer.check())


TERSE = (
    "{{ bos_token }}{% for m in messages %}{{ '[' ~ m.role ~ ']' ~ m.content }}"
    "{% if m.role == 'assistant' %}STOP{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize("by_template", [True, False])
@pytest.mark.parametrize("by_tokenizer", [True, False])
def test_there_is_exactly_one_bos(
    make_folder: MakeFolder, by_template: bool, by_tokenizer: bool
) -> None:
    template = TERSE.replace("STOP", "<|im_end|>")
    if not by_template:
        template = template.replace("{{ bos_token }}", "")
    folder = make_folder(template, bos_by_tokenizer=by_tokenizer, bos_token="<|bos|>")
    renderer = Renderer(load(folder))
    ids = renderer.prompt([user("<|bos|> hello")])
    assert ids.count(3) == int(by_template or by_tokenizer)
    assert 3 not in renderer.observation([user("<|bos|>")])
    assert 3 not in renderer.assistant(AssistantTurn(text="<|bos|>"))


def test_a_template_without_tools_has_them_in_the_system_message(
    chatml: Path, tools: Sequence[ToolSchema]
) -> None:
    tokenizer = load(chatml)
    renderer = Renderer(tokenizer, tools, tool_results="user")
    assert not renderer.tools_in_template
    text = tokenizer.decode(
        renderer.prompt([Message(role="system", content="Be exact."), user("Hi")])
    )
    system, rest = text.split("<|im_end|>", 1)
    assert system.startswith("<|im_start|>system\nBe exact.\n\nYou have tools.")
    assert '"name": "write"' in system
    assert rest == "\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    alone = tokenizer.decode(renderer.prompt([user("Hi")]))
    assert alone.startswith("<|im_start|>system\nYou have tools.")
    answer = tokenizer.decode(renderer.observation([result("3")]))
    assert answer == (
        "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_check_reports_what_it_learnt(folder: Path, tools: Sequence[ToolSchema]) -> None:
    lines = Renderer(load(folder), tools).check()
    assert any(line.startswith("prefix-preserving: yes") for line in lines)
    assert "stop tokens: <|im_end|> (2)" in lines
    assert any(line.startswith(r"separator: '\n<|im_start|>user") for line in lines)


def test_a_template_that_rewrites_history_is_refused_with_the_conversation(
    make_folder: MakeFolder,
) -> None:
    template = TERSE.replace("STOP", "<|im_end|>").replace(
        "m.content", "m.content[-8 * loop.revindex0:]"
    )
    renderer = Renderer(load(make_folder(template)))
    with pytest.raises(ConfigError, match="for user, assistant, user, it drops") as caught:
        renderer.check()
    assert "use a template that only appends" in str(caught.value)
    with pytest.raises(ConfigError, match="changes earlier text"):
        renderer.observation([user("Again.")])


def test_an_assistant_message_may_be_rendered_otherwise_when_it_is_last(
    make_folder: MakeFolder,
) -> None:
    template = TERSE.replace("STOP", "{{ '!' if loop.last }}<|im_end|>")
    renderer = Renderer(load(make_folder(template)))
    assert any(line.startswith("prefix-preserving: yes") for line in renderer.check())
    steps = [(AssistantTurn(text="Hi."), [user("Go on.")])] * 2
    conversation = [user("Begin."), *[of_assistant("Hi."), user("Go on.")] * 2]
    assert play(renderer, steps) == renderer.prompt(conversation)


def test_roles_that_a_template_refuses_are_named(qwen_like: Path) -> None:
    renderer = Renderer(load(qwen_like))
    with pytest.raises(ConfigError, match=r"conversation of user, critic \(no such role\)"):
        renderer.prompt([user("a"), Message(role="critic", content="b")])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        renderer.observation([])


def test_a_prompt_that_opens_thinking_is_closed_by_the_turn(make_folder: MakeFolder) -> None:
    template = CHATML_LIKE.replace("[assistant]{% endif", "[assistant]<think>\n{% endif")
    tokenizer = load(make_folder(template))
    renderer = Renderer(tokenizer)
    assert renderer.opens_thinking
    turn = AssistantTurn(text="Yes.", reasoning="Is it?")
    assert tokenizer.decode(renderer.assistant(turn)) == "Is it?\n</think>\n\nYes.<|im_end|>"
    assert not Renderer(load(make_folder(CHATML_LIKE))).opens_thinking

    shows_empty = template.replace(
        "{{ m.content }}",
        "{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}",
    )
    assert shows_empty != template
    tokenizer = load(make_folder(shows_empty))
    turn = AssistantTurn(text="Yes.")
    assert tokenizer.decode(Renderer(tokenizer).assistant(turn)) == "</think>Yes.<|im_end|>"


REASONING: tuple[Reasoning, ...] = ("keep", "fork")
FORGETS_REASONING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_reasoning_is_kept_or_a_new_segment_begins(make_folder: MakeFolder) -> None:
    tokenizer = load(make_folder(FORGETS_REASONING))
    turn = AssistantTurn(text="Yes.", reasoning="Is it?")
    chat = [user("Well?"), turn.message(), user("Sure?")]
    for reasoning in ("keep", "fork"):
        renderer = Renderer(tokenizer, reasoning=reasoning)
        record = renderer.prompt(chat[:1]) + renderer.assistant(turn)
        assert "Is it?" in tokenizer.decode(record)
        goes_on = renderer.continuation(record, chat, 1)
        if reasoning == "keep":
            assert not goes_on.forks
            assert goes_on.ids == renderer.observation(chat[2:])
        else:
            assert goes_on.forks
            assert goes_on.ids == renderer.prompt(chat)
            assert "Is it?" not in tokenizer.decode(goes_on.ids)
    plain = AssistantTurn(text="The answer is 5")
    renderer = Renderer(tokenizer, reasoning="fork")
    chat = [user("Well?"), plain.message(), user("Sure?")]
    letters = [i for c in plain.text for i in tokenizer.encode(c, specials=False)]
    assert letters != tokenizer.encode(plain.text, specials=False)
    record = renderer.prompt(chat[:1]) + letters + [tokenizer.controls["<|im_end|>"]]
    goes_on = renderer.continuation(record, chat, 1)
    assert not goes_on.forks
    assert goes_on.ids == renderer.observation(chat[2:])


def test_a_turn_cut_off_is_closed_by_the_template_only_where_it_may_fork(qwen_like: Path) -> None:
    tokenizer = load(qwen_like)
    keeps, forks = (Renderer(tokenizer, reasoning=reasoning) for reasoning in REASONING)
    turn = AssistantTurn(text="Yes and", stop_reason=StopReason.LENGTH)
    chat = [user("a"), turn.message(), user("b")]
    ids = keeps.prompt(chat[:1]) + keeps.assistant(turn)
    kept, forked = (renderer.continuation(ids, chat, 1) for renderer in (keeps, forks))
    assert not kept.forks
    assert not forked.forks
    assert forked.ids == [tokenizer.controls["<|im_end|>"], *kept.ids]

    letters = [i for c in turn.text for i in tokenizer.encode(c, specials=False)]
    begun = forks.continuation(keeps.prompt(chat[:1]) + letters, chat, 1)
    assert begun.forks
    assert begun.ids == forks.prompt(chat)


NO_END_OF_TURN = (
    "{% for m in messages %}"
    "{{ {'user': '<|im_start|>', 'tool': '<tool_response>', 'assistant': '<|bos|>'}[m.role] }}"
    "{{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|bos|>{% endif %}{{ tools }}"
).replace("{{ tools }}", "")


def test_the_marker_of_the_next_role_is_the_stop_token_and_not_repeated(
    make_folder: MakeFolder, tools: Sequence[ToolSchema]
) -> None:
    tokenizer = load(make_folder(NO_END_OF_TURN, eos_token="<|endoftext|>"))
    renderer = Renderer(tokenizer, tools)
    controls = tokenizer.controls
    next_user, next_tool = controls["<|im_start|>"], controls["<tool_response>"]
    assert renderer.stop_ids == {next_user, next_tool, controls["<|endoftext|>"]}
    assert renderer.assistant(AssistantTurn(text="Hi."))[-1] == next_user
    called = renderer.assistant(AssistantTurn(calls=(add(1, 2),)))
    assert called[-1] == next_tool
    answer = renderer.observation([result("3")], after=next_tool)
    assert tokenizer.decode(answer) == "3<|bos|>"
    # A model that stopped with something else did not write the marker.
    for other in (next_user, controls["<|endoftext|>"]):
        assert renderer.observation([result("3")], after=other) == [next_tool, *answer]


def ids_or_refusal(
    render: Callable[[Sequence[Message]], list[int]], messages: Sequence[Message]
) -> list[int] | str:
    """What the renderer gives, or why it takes no such content."""
    try:
        return render(messages)
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize(
    "shown",
    [
        "m.content",
        "m.content | trim",
        "m.content | tojson",
        "m.content | replace('#', '-')",
        "'long' if m.content | length > 99 else m.content",
        "m.content if m.content != '7' else 'seven'",
        "'[ERR]' if m.content[:6] == 'Error:' else m.content",
        "'[ERR]' if (m.content | lower) in ('error: full', 'x') else m.content",
        "'[ERR]' if (m['content'] | first) == 'E' else m.content",
        "('[ERR]' if (messages | map(attribute='content') | list)[-1][0] == 'E') ~ m.content",
    ],
)
def test_an_observation_is_the_same_however_often_it_was_seen(
    make_folder: MakeFolder, shown: str
) -> None:
    template = CHATML_LIKE.replace("{{ m.content }}", "{{ " + shown + " }}")
    tokenizer = load(make_folder(template))
    renderer = Renderer(tokenizer)
    renderer.observation([user("The first one.")])
    for content in (
        "plain",
        " edges\n",
        "a # b",
        "7",
        "q\"uo'te",
        "x" * 120,
        "",
        "é<b>",
        "\n",
        "Error: full",
    ):
        fresh = ids_or_refusal(Renderer(tokenizer).observation, [user("<" + content)])
        again = ids_or_refusal(renderer.observation, [user("<" + content)])
        assert fresh == again
        whole = ids_or_refusal(renderer.prompt, [user("a"), of_assistant("b"), user(content)])
        added = ids_or_refusal(renderer.observation, [user(content)])
        assert whole[-len(added) :] == added


ALTERING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content | replace('secret', '') }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_content_that_a_template_alters_is_refused_when_it_comes(make_folder: MakeFolder) -> None:
    renderer = Renderer(load(make_folder(ALTERING)))
    fine, altered = (Message(role="user", content=c) for c in ("open", "the secret is 5"))
    assert renderer.prompt([fine])
    assert renderer.observation([fine])
    for render in (renderer.prompt, renderer.observation):
        with pytest.raises(ConfigError, match="alters the content of a user message: 'the secret"):
            render([altered])


def test_tokens_that_are_text_beside_a_letter_are_refused(make_folder: MakeFolder) -> None:
    folder = make_folder(TEMPLATES["chatml"])
    definition = json.loads((folder / "tokenizer.json").read_text())
    for token in definition["added_tokens"]:
        token["single_word"] = True
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(ConfigError, match=r"is a single_word in tokenizer\.json"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ raise_exception('division by zero') }}"])
def test_a_template_that_fails_says_how(make_folder: MakeFolder, source: str) -> None:
    assert "division by zero" in Renderer(load(make_folder(source))).profile.fault
