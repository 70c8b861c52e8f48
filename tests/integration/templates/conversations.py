"""Random conversations for chat templates, and what the template itself makes of them.

`play` goes through a conversation as a run does, turn by turn, and holds what was appended against
transformers' rendering of the whole conversation so far.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from agentrl.tokens import Hermes, Renderer
from agentrl.tokens.template_dialect import (
    calls_as_text,
    results_as_user,
    to_wire,
    with_instructions,
)
from agentrl.types import AssistantTurn, Json, Message, ToolCall, ToolSchema
from tests.integration.templates.corpus import definition_of, family, sources

TOOLS = (
    ToolSchema(
        name="lookup",
        description="Looks a key up, e.g. “naïve” or a < b.",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "what to look up"},
                "limit": {"type": "integer"},
            },
            "required": ["query"],
        },
    ),
    ToolSchema(
        name="write",
        description="Writes a text.",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}},
    ),
)
SAMPLES = (
    "Zähle bis drei.",
    "日本語のテキスト 🙂👩‍👩‍👧",
    "def f(x):\n    return x < 3 and x[0] | 1\n",
    '{"a": [1, {"b": null}], "c": "\\n"}',
    "a < b |> c, x > y",
    "  spaces at both ends  ",
    "e\u0301\u200b\ufeff",
    "\n\nlines\n\n",
    "''' \"quoted\" \\ back",
    "0",
    "<b>bold</b> [link](x) {{ braces }} {% raw %}",
)


MARKER = re.compile(r"<\S+?>|\[/?[A-Z_]{3,}\]")
"""What control tokens look like: hypothesis also draws texts that stand in the code under test."""


def texts() -> st.SearchStrategy[str]:
    """Ordinary text of any script, code, JSON; nothing that is a control token somewhere."""
    letters = st.characters(exclude_categories=("Cs", "Co"))
    free = st.text(letters, min_size=1, max_size=20).filter(lambda text: not MARKER.search(text))
    pieces = st.lists(st.one_of(st.sampled_from(SAMPLES), free), min_size=1, max_size=3)
    return pieces.map(" ".join)


def values() -> st.SearchStrategy[Json]:
    """Arguments: strings, numbers, booleans, None, nested."""
    plain = st.one_of(texts(), st.integers(-(10**9), 10**9), st.booleans(), st.none())
    nested = st.one_of(st.lists(plain, max_size=3), st.dictionaries(st.just("k"), plain))
    return cast("st.SearchStrategy[Json]", st.one_of(plain, nested))


@st.composite
def conversations(
    draw: st.DrawFn,
    *,
    calls: int = 0,
    turns: int = 4,
    contents: st.SearchStrategy[str] | None = None,
) -> list[Message]:
    """A conversation that begins and ends with something for the assistant to answer.

    `calls` is the most calls of one turn.
    """
    said = contents if contents is not None else texts()
    chat = [Message(role="system", content=draw(said))] if draw(st.booleans()) else []
    chat.append(Message(role="user", content=draw(said)))
    for _ in range(draw(st.integers(1, turns))):
        made = draw(st.integers(0, calls))
        reasoning = draw(said) if draw(st.integers(0, 3)) == 0 else ""
        # Some templates refuse words and reasoning beside a call.
        speaks = not made or (not reasoning and draw(st.booleans()))
        chat.append(
            Message(
                role="assistant",
                content=draw(said) if speaks else "",
                reasoning=reasoning,
                tool_calls=tuple(draw(_call(i, said)) for i in range(made)),
            )
        )
        chat.extend(
            Message(role="tool", content=draw(said), name=call.name, tool_call_id=call.id)
            for call in chat[-1].tool_calls
        )
        if not made:
            chat.append(Message(role="user", content=draw(said)))
    return chat


@st.composite
def _call(draw: st.DrawFn, number: int, said: st.SearchStrategy[str]) -> ToolCall:
    arguments: dict[str, Json] = {"query": draw(said)}
    if draw(st.booleans()):
        arguments["limit"] = draw(values())
    name = draw(st.sampled_from([tool.name for tool in TOOLS]))
    return ToolCall(name=name, arguments=arguments, id=f"call_{number}")


def oracle_of(name: str, renderer: Renderer) -> "Oracle":
    """The oracle for a template of the corpus."""
    return Oracle(fast_of(family(name)), sources()[name], renderer)


@cache
def fast_of(known: str) -> PreTrainedTokenizerFast:
    """transformers' form of a family's tokenizer."""
    definition, special = definition_of(known)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=RawTokenizer.from_str(definition),
        clean_up_tokenization_spaces=False,
        **cast("dict[str, Any]", special),
    )


class Oracle:
    """transformers' own `apply_chat_template`, fed in the template's dialect."""

    def __init__(self, fast: PreTrainedTokenizerFast, template: str, renderer: Renderer) -> None:
        self._fast, self._template, self._renderer = fast, template, renderer

    def ids(self, chat: Sequence[Message], use: str) -> list[int]:
        """The ids of the conversation up to where the assistant speaks.

        `use` is "tools", "user" (results as user text) or "text" (no tools).
        """
        as_user, tools = use == "user", () if use == "text" else TOOLS
        profile, form, told = self._renderer.profile, Hermes(), list(chat)
        if as_user or not profile.shows_calls:
            told = calls_as_text(told, form, results=not as_user)
        if as_user:
            told = results_as_user(told, form)
        shown = profile.shows_tools and not as_user
        if tools and not shown:
            told = with_instructions(told, form.instructions(tools))
        ids = self._fast.apply_chat_template(  # pyright: ignore[reportUnknownMemberType]
            json.loads(json.dumps(to_wire(told, profile.dialect))),
            chat_template=self._template,
            tools=[tool.to_json() for tool in tools] if shown and tools else None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        return cast("list[int]", ids)


@dataclass(slots=True)
class Played:
    """What came of a conversation."""

    ids: list[int]
    turns: int = 0
    equal: int = 0
    """Turns after which the record's new ids are the template's, token for token."""
    rewritten: list[str] = field(default_factory=list[str])
    """Why the template does not only append, for each of the other turns."""


def turns_of(chat: Sequence[Message]) -> list[tuple[int, int]]:
    """Where each assistant's message is, and where what answers it ends."""
    places = [i for i, message in enumerate(chat) if message.role == "assistant"]
    return list(zip(places, [*places[1:], len(chat)], strict=True))


def play(renderer: Renderer, oracle: Oracle, chat: Sequence[Message], use: str) -> Played:
    """Go through the conversation; fails where the record and the template disagree."""
    places = turns_of(chat)
    before = oracle.ids(chat[: places[0][0]], use)
    played = Played(ids=renderer.prompt(chat[: places[0][0]]))
    assert played.ids == before
    for at, end in places:
        message = chat[at]
        turn = AssistantTurn(
            text=message.content, reasoning=message.reasoning, calls=message.tool_calls
        )
        sampled = renderer.assistant(turn)
        added = renderer.observation(chat[at + 1 : end], after=sampled[-1])
        after = oracle.ids(chat[:end], use)
        played.ids += sampled + added
        played.turns += 1
        if before + sampled + added == after:
            played.equal += 1
        else:
            reason = rewriting(renderer, message, before, sampled, added, after)
            assert reason, (chat[at - 1 : end], before, sampled, added, after)
            played.rewritten.append(reason)
        before = after
    return played


def rewriting(
    renderer: Renderer,
    message: Message,
    before: list[int],
    sampled: list[int],
    added: list[int],
    after: list[int],
) -> str:
    """What the template does to the past instead of appending; empty if it only appends."""
    begins, ends = after[: len(before)] == before, after[-len(added) :] == added
    if ends and not begins:
        return "changes what came before"
    if ends and message.reasoning:
        return "leaves reasoning out"
    if begins and ends and after[: -len(added)][-len(sampled) :] == sampled:
        return "begins a turn in history with more than it began it for generation"
    calls = message.tool_calls and renderer.calls_in_template
    if calls and message.content:
        return "leaves out or moves words beside a call"
    ending = renderer.profile.after_calls if calls else renderer.profile.after_text
    if (
        ends
        and ending.closing != ending.stop.text
        and after[len(before) :][: len(sampled) - 1] == sampled[:-1]
    ):
        return "ends a turn in history with another token"
    return ""
