"""`Renderer`: messages to ids, by the tokenizer's own chat template.

The first prompt is rendered whole. Later messages are rendered as a suffix: what they add behind
the last assistant message of a short synthetic conversation, whatever the length of the real one.
Whatever the template writes after the stop token (often a line break) is therefore the beginning of
the observation.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

from agentrl.errors import ConfigError
from agentrl.tokens.formats.base import ToolFormat
from agentrl.tokens.formats.hermes import Hermes
from agentrl.tokens.injection_guard import ContentGuard, Mark
from agentrl.tokens.template_dialect import (
    Frame,
    calls_as_text,
    find_frame,
    mark_message,
    mark_tool,
    results_as_user,
    to_wire,
    with_instructions,
)
from agentrl.tokens.template_probe import (
    USER,
    Ending,
    TemplateProfile,
    first_difference,
    probe_template,
)
from agentrl.tokens.tokenizer import Tokenizer
from agentrl.types import AssistantTurn, Message, StopReason, ToolCall, ToolSchema

Reasoning = Literal["keep", "fork"]
Results = Literal["template", "user"]

_FRAMES_KEPT = 1024
_FRAMED = 2
"""Most messages of a frame: there are too many kinds of longer runs to learn each."""
_BOS_WITHIN = 4
_TINY_TOOL = ToolSchema(name="f", description="", parameters={"type": "object", "properties": {}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What follows a sampled turn."""

    ids: list[int]
    """What to append to the record; if it forks, the prompt of a new segment."""
    forks: bool


class Renderer:
    """Renders for one set of tools; thread-safe.

    Message texts, tool results, names, arguments and descriptions are content: no control token
    comes from them. What the template does not write itself is text in `tool_format`: descriptions
    of tools go into the system message, calls into the assistant's. The results of calls are the
    template's tool messages; with `tool_results="user"` those of one turn are one user message.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[ToolSchema] = (),
        *,
        tool_results: Results = "template",
        reasoning: Reasoning = "keep",
        tool_format: ToolFormat | None = None,
    ) -> None:
        if tools and tool_results == "template":
            tokenizer = tokenizer.for_tools
        self._tokenizer = tokenizer
        self._guard = ContentGuard(tokenizer)
        self._tools = tuple(tools)
        self._tool_results: Results = tool_results
        self._reasoning: Reasoning = reasoning
        self._format: ToolFormat = tool_format or Hermes(tokenizer)
        self._frames: dict[tuple[tuple[str, str, str], ...], Frame] = {}
        self._probe = f"probe{secrets.token_hex(8)}"

    @cached_property
    def profile(self) -> TemplateProfile:
        """What the template does."""
        return probe_template(self._tokenizer)

    @cached_property
    def _usable_profile(self) -> TemplateProfile:
        if self.profile.fault:
            raise ConfigError(self.profile.fault)
        return self.profile

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the conversation so far, up to where the assistant speaks.

        Begins with exactly one BOS if the template or the tokenizer has one. Raises ConfigError if
        the template refuses the roles, or alters what a user or a tool said.
        """
        rendered = self._render_marked_chat(messages, self._tools, generate=True)
        self._check_contents_kept([m for m in messages if m.role in ("user", "tool")], rendered)
        return self._prepend_missing_bos_id(self._guard.encode(rendered))

    def conversation(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation that has come to its end, for a model that judges it."""
        rendered = self._render_marked_chat(messages, self._tools, generate=False)
        return self._prepend_missing_bos_id(self._guard.encode(rendered))

    def observation(self, messages: Sequence[Message], after: int | None = None) -> list[int]:
        """Ids to append behind a sampled turn for new tool or user messages.

        They begin with what the template writes after the stop token, which is the sampled one, and
        end where the assistant speaks again. Consecutive tool results are one unit. `after` is the
        last sampled id: where the marker of the next role is the stop token, it is written here if
        the model sampled something else. Raises ConfigError if the template loses the messages.
        """
        if not messages:
            raise ValueError("no messages to observe were given; expected at least one")
        ending = self._choose_turn_ending(any(m.role == "tool" for m in messages))
        stop = ending.stop
        ids = self._guard.encode(
            stop.text + self._render_observation_marked(messages, self._tools_to_render_later_turns)
        )
        if ending.is_next_role and after is not None and after != stop.id:
            return ids
        # It is encoded too, since it may swallow white space behind it.
        return ids[1:] if stop.text else ids

    def assistant(self, turn: AssistantTurn) -> list[int]:
        """Ids that a model would sample for `turn`, with the stop token unless it was cut off.

        Calls that could not be parsed are left out.
        """
        message = turn.message()
        ending = self._choose_turn_ending(bool(message.tool_calls))
        ids = self._guard.encode(self._render_assistant_turn(message, ending) + ending.stop.text)
        if not ending.stop.text:
            ids.append(ending.stop.id)
        return ids[:-1] if turn.stop_reason is StopReason.LENGTH else ids

    def continuation(
        self, ids: Sequence[int], conversation: Sequence[Message], num_new: int
    ) -> Continuation:
        """How a record goes on whose last token was sampled.

        `conversation` is all of it, its last `num_new` messages the ones to observe. With
        `reasoning="keep"` the record always goes on. With `"fork"` it does so only if the
        template's own rendering of the conversation has the text of `ids` as its beginning.
        """
        if self._reasoning == "keep":
            new = conversation[len(conversation) - num_new :]
            return Continuation(ids=self.observation(new, after=ids[-1]), forks=False)
        prompt = self.prompt(conversation)
        if prompt[: len(ids)] == list(ids):
            return Continuation(ids=prompt[len(ids) :], forks=False)
        # The same text may have other ids where the model split its words in its own way.
        ends = [i for i, token in enumerate(prompt, 1) if token in self._ids_of_control_tokens]
        num = self._count_control_tokens(ids)
        end = ends[num - 1] if 0 < num <= len(ends) else 0
        decode = self._tokenizer.decode
        if ids[-1] in self._ids_of_control_tokens and decode(prompt[:end]) == decode(ids):
            return Continuation(ids=prompt[end:], forks=False)
        return Continuation(ids=prompt, forks=True)

    @cached_property
    def _ids_of_control_tokens(self) -> frozenset[int]:
        return frozenset(self._tokenizer.controls.values())

    def _count_control_tokens(self, ids: Sequence[int]) -> int:
        return sum(map(self._ids_of_control_tokens.__contains__, ids))

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """What ends an assistant's turn: the template's tokens, and the end-of-text token."""
        endings = (self._usable_profile.after_text, self._usable_profile.after_calls)
        eos = self._tokenizer.eos_token
        return frozenset({e.stop.id for e in endings} | ({eos.id} if eos else set()))

    @cached_property
    def opens_thinking(self) -> bool:
        """True if the prompt already opens the thinking block that a model fills and closes."""
        return bool(self.profile.opened_thinking)

    @property
    def knows_thinking(self) -> bool:
        """True if the template opens a thinking block, shows one or looks for its end."""
        ends = ("</think>", self._format.think[1])
        named = any(end in self._tokenizer.template.source for end in ends)
        return self.opens_thinking or self.profile.shows_reasoning or named

    @property
    def tools_in_template(self) -> bool:
        """True if the chat template describes tools."""
        return self.profile.shows_tools and self._tool_results == "template"

    @cached_property
    def calls_in_template(self) -> bool:
        """True if the chat template writes calls."""
        return self.profile.shows_calls and self._tool_results == "template"

    def check(self) -> list[str]:
        """Try the template on short conversations; returns what was learnt, a line each.

        Raises ConfigError with the shortest conversation that shows it if the template cannot be
        used for what this renderer is for.
        """
        from agentrl.tokens.template_check import examine

        report = examine(self, with_tools=bool(self._tools))
        report.require(self._reasoning)
        return [f"{row.name}: {row.detail}" for row in report.rows]

    @property
    def bos(self) -> tuple[str, int]:
        """The text of the BOS and how often a prompt of one message begins with it.

        In some families it begins or ends every message, so the first ids alone are counted.
        """
        bos = self._tokenizer.bos_token
        if bos is None:
            return "none", 0
        ids = self.prompt([USER])
        return bos.text, ids[:4].count(bos.id)

    @property
    def markers(self) -> list[str]:
        """What content must not turn into: control tokens and the template's own markers."""
        return [*self._tokenizer.controls, *self._tokenizer.template.markers]

    def num_controls(self, messages: Sequence[Message]) -> int:
        """How many control tokens the ids of a conversation hold."""
        return self._count_control_tokens(self.prompt(messages))

    def name_of(self, number: int) -> str:
        """An id for readers."""
        return f"{self._tokenizer.decode([number])} ({number})"

    def text(self, messages: Sequence[Message], *, generate: bool = True) -> str:
        """The conversation as the template writes it, for readers."""
        return self._guard.plain(self._render_marked_chat(messages, self._tools, generate=generate))

    def spoken(self, message: Message) -> str:
        """What a model samples for the assistant's message, with its stop token, for readers."""
        ending = self._choose_turn_ending(bool(message.tool_calls))
        return self._guard.plain(self._render_assistant_turn(message, ending)) + ending.stop.text

    def suffix(self, messages: Sequence[Message]) -> str:
        """What the template writes for messages behind a stop token, for readers."""
        return self._guard.plain(
            self._render_new_messages(messages, self._tools_to_render_later_turns)
        )

    def _render_observation_marked(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> str:
        """The marked text of an observation, from a frame around its contents if there is one."""
        contents = [message.content for message in messages]
        plain = [
            content
            for content in contents
            if content.strip() and self._guard.mark(content) is content
        ]
        if len(plain) < len(contents) or len(messages) > _FRAMED:
            return self._render_checked_messages(messages, tools)
        shape = tuple([(m.role, m.name, m.tool_call_id) for m in messages])
        frame = self._frames.get(shape)
        if frame is None:
            whole = partial(self._render_new_messages, tools=tools)
            frame = find_frame(whole, messages, self._tokenizer.template.verbatim)
            if len(self._frames) < _FRAMES_KEPT:
                self._frames[shape] = frame
        return frame.around(contents) or self._render_checked_messages(messages, tools)

    def _render_checked_messages(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> str:
        text = self._render_new_messages(messages, tools)
        self._check_contents_kept(messages, text)
        return text

    def _render_new_messages(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> str:
        chat = [*self._make_stand_in_chat_before(messages), *messages]
        text = self._render_marked_chat(chat, tools, generate=True)
        at = text.find(self._probe) + len(self._probe)
        trailer = self._choose_turn_ending(any(m.role == "tool" for m in messages)).trailer
        if at < len(self._probe) or not text.startswith(trailer, at):
            raise ConfigError(not_preserving(chat, trailer, text[max(at, 0) :]))
        return text[at + len(trailer) :]

    def _check_contents_kept(self, messages: Sequence[Message], rendered: str) -> None:
        """Raise ConfigError unless the text holds every content, as it is or as JSON."""
        shown = self._guard.plain(rendered)
        for message in messages:
            content = self._guard.plain(self._guard.mark(message.content)).strip()
            quoted = (json.dumps(content, ensure_ascii=ascii_)[1:-1] for ascii_ in (False, True))
            if content not in shown and not any(form in shown for form in quoted):
                raise ConfigError(
                    f"the chat template alters the content of a {message.role} message: "
                    f"{content[:40]!r} is not in what it writes; use a template that keeps it"
                )

    @cached_property
    def _tools_to_render_later_turns(self) -> Sequence[ToolSchema]:
        """A stand-in for the tools, except where the template repeats them later."""
        if not self.tools_in_template:
            return ()
        for message in (USER, Message(role="tool", content="1", name="f", tool_call_id="c")):
            try:
                if self._render_new_messages([message], (_TINY_TOOL,)) != self._render_new_messages(
                    [message], self._tools
                ):
                    return self._tools
            except ConfigError:
                return self._tools
        return (_TINY_TOOL,) if self._tools else ()

    def _make_stand_in_chat_before(self, messages: Sequence[Message]) -> list[Message]:
        """A conversation that `messages` may follow: its assistant makes the calls they answer."""
        results = [message for message in messages if message.role == "tool"]
        if not results or not self.calls_in_template:
            return [USER, Message(role="assistant", content=self._probe)]
        if not self.profile.parallel_calls:
            results = results[:1]
        calls = [
            ToolCall(name=r.name or "tool", id=r.tool_call_id or f"call_{i}")
            for i, r in enumerate(results)
        ]
        calls[-1] = replace(calls[-1], arguments={"x": self._probe})
        return [USER, Message(role="assistant", tool_calls=tuple(calls))]

    def _choose_turn_ending(self, makes_calls: bool) -> Ending:
        calls = self.calls_in_template and makes_calls
        return self._usable_profile.after_calls if calls else self._usable_profile.after_text

    def _render_assistant_turn(self, message: Message, ending: Ending) -> str:
        """What a model writes for the message behind the generation prompt, without stop token.

        It is what the next prompt shows of it, except that reasoning is never left out.
        """
        for shown in (message, replace(message, reasoning="")):
            for body in (
                self._render_past_turn(shown, ending),
                self._render_last_turn(shown, ending),
            ):
                if body is not None and self._guard.mark(shown.reasoning).strip() in body:
                    left_out = "" if shown is message else self._guard.mark(message.reasoning)
                    if left_out and not self.opens_thinking:
                        left_out = self._format.render_reasoning(left_out)
                    return left_out + body
        raise ConfigError(not_preserving([USER, message], self.text([USER]), self.text([USER])))

    def _render_past_turn(self, message: Message, ending: Ending) -> str | None:
        """The message's text in a conversation that goes on; None if it is not to be found."""
        following = [
            Message(role="tool", content="1", name=call.name, tool_call_id=call.id)
            for call in message.tool_calls
        ] or [USER]
        try:
            text = self._render_marked_chat(
                [USER, message, *following], self._tools_to_render_later_turns, generate=True
            )
            suffix = ending.closing + self._render_new_messages(
                following, self._tools_to_render_later_turns
            )
        except ConfigError:
            return None
        return self._cut_behind_prompt(text.removesuffix(suffix)) if text.endswith(suffix) else None

    def _render_last_turn(self, message: Message, ending: Ending) -> str | None:
        text = self._render_marked_chat([USER, message], self._tools_to_render_later_turns)
        begin = len(self._text_before_assistant)
        cut = text.rfind(ending.stop.text, begin) if ending.stop.text else len(text)
        if cut < 0 and ending.is_next_role:
            cut = len(text)  # no role is next
        return self._cut_behind_prompt(text[:cut]) if cut >= 0 else None

    def _cut_behind_prompt(self, text: str) -> str | None:
        """What follows the generation prompt in a conversation of the user and the assistant."""
        opening, before = self._opening_of_assistant, self._text_before_assistant
        if not text.startswith(before):
            return None
        body = text[len(before) :]
        if body.startswith(opening):
            return body[len(opening) :]
        closing = self._end_mark_of_thinking
        # History may show an empty block whose opening mark is the generation prompt's own.
        if not self.opens_thinking or body.startswith(closing.strip()):
            return body
        return closing + body

    @cached_property
    def _text_before_assistant(self) -> str:
        """What stands before an assistant's text both in history and when it is to speak."""
        head = self._render_marked_chat([USER], self._tools_to_render_later_turns, generate=True)
        said = Message(role="assistant", content=self._probe)
        history = self._render_marked_chat([USER, said, USER], self._tools_to_render_later_turns)
        return head[: first_difference(head, history)]

    @cached_property
    def _opening_of_assistant(self) -> str:
        """What the generation prompt has beyond that."""
        head = self._render_marked_chat([USER], self._tools_to_render_later_turns, generate=True)
        return head[len(self._text_before_assistant) :]

    @property
    def _end_mark_of_thinking(self) -> str:
        opened = self.profile.opened_thinking.strip()
        others = {"[THINK]": "[/THINK]", "<|START_THINKING|>": "<|END_THINKING|>"}
        return f"\n{others.get(opened, opened.replace('<', '</', 1))}\n\n"

    def _prepend_missing_bos_id(self, ids: list[int]) -> list[int]:
        bos = self._tokenizer.bos_token
        # A template may write something short, such as a line break, in front of its own.
        if bos and self._tokenizer.adds_bos and bos.id not in ids[:_BOS_WITHIN]:
            return [bos.id, *ids]
        return ids

    def _render_marked_chat(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, generate: bool = False
    ) -> str:
        """The conversation with the content marked."""
        guard = self._guard
        text = self._render_chat_with_mark(messages, tools, generate, guard.mark)
        if guard.stitches:
            harmless = self._render_chat_with_mark(messages, tools, generate, guard.neutral)
            if guard.num_controls(text) != guard.num_controls(harmless):
                return self._render_chat_with_mark(messages, tools, generate, guard.mark_everywhere)
        return text

    def _render_chat_with_mark(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], generate: bool, mark: Mark
    ) -> str:
        told = [mark_message(message, mark) for message in messages]
        described = [mark_tool(tool, mark) for tool in tools]
        if not self.calls_in_template:
            told = calls_as_text(told, self._format, results=self._tool_results == "template")
        if self._tool_results == "user":
            told = results_as_user(told, self._format)
        if described and not self.tools_in_template:
            told = with_instructions(told, self._format.instructions(described))
            described = []
        return self._tokenizer.template.render(
            to_wire(told, self.profile.dialect),
            [tool.to_json() for tool in described],
            add_generation_prompt=generate,
        )


def not_preserving(conversation: Sequence[Message], expected: str, got: str) -> str:
    """What a template does that breaks the record, with the conversation that shows it."""
    at = first_difference(expected, got)
    return (
        "the chat template changes earlier text when messages are added: for "
        f"{describe_roles(conversation)}, it writes {got[at : at + 40]!r} where "
        f"{expected[at : at + 40]!r} stood; use a template that only appends"
    )


def describe_roles(conversation: Sequence[Message]) -> str:
    """The conversation in a few words, such as "user, assistant with call, tool"."""
    return ", ".join(
        message.role
        + " with calls" * bool(message.tool_calls)
        + " with reasoning" * bool(message.reasoning)
        for message in conversation
    )
