"""What is learnt about a chat template, once, from rendering short conversations.

`probe_template` finds how the template wants its input (the dialect), where an assistant's message
ends and which token a model samples there, and whether tools, calls and results survive at all.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from agentrl.errors import ConfigError
from agentrl.tokens.template_dialect import Dialect, to_wire
from agentrl.tokens.tokenizer import SpecialToken, Tokenizer
from agentrl.types import Message, Role, ToolCall, ToolSchema

USER = Message(role="user", content="Hello")
_THINKING = re.compile(r"(<think>|<thinking>|\[THINK\]|<\|START_THINKING\|>|<seed:think>)\s*$")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Where an assistant's message ends, and with what."""

    stop: SpecialToken
    """What the model samples there; its text is empty if the template writes no such token."""
    trailer: str
    """What the template writes in history from the end of the content to where others go on."""
    closing: str
    """The control token at the end of `trailer`; empty if there is none."""
    is_next_role: bool = False
    """True if `stop` is the marker of the role that speaks next, as there is no other sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateProfile:
    """What a template does; see `probe_template`."""

    dialect: Dialect
    fault: str
    """Why no conversation can go on; empty if it can."""
    after_text: Ending
    """The end of an assistant's message without calls."""
    after_calls: Ending
    """The end of one with calls, where the template writes them; else that of one without."""
    shows_tools: bool
    """Whether the template writes descriptions of tools."""
    shows_calls: bool
    """Whether the template writes calls; else they are text of the assistant's message."""
    results_fault: str
    """Why tool messages cannot be used; empty if they can."""
    parallel_calls: bool
    """Whether several calls of one turn are kept."""
    generation: str
    """What the template writes for the assistant to begin."""
    opened_thinking: str
    """The part of `generation` that opens a thinking block; empty if it opens none."""
    shows_reasoning: bool
    """Whether the reasoning of the last assistant message is written."""


def probe_template(tokenizer: Tokenizer) -> TemplateProfile:
    """Try the template; never raises for what it does."""
    return _Probe(tokenizer).profile()


def first_difference(one: str, other: str) -> int:
    """Where two texts part; the length of the shorter one if it begins the other."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


class _Probe:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._dialect = Dialect()
        nonce = secrets.token_hex(4)
        self._words = {
            name: f"{name}{nonce}x"
            for name in ("said", "tool", "about", "key", "value", "result", "key2", "value2")
        }
        self._second_result = f"other{nonce}x"
        word = self._words
        self._said = Message(role="assistant", content=word["said"])
        self._asked = Message(role="user", content=word["result"])
        self._tool = ToolSchema(
            name=word["tool"],
            description=word["about"],
            parameters={"type": "object", "properties": {word["key"]: {"type": "string"}}},
        )
        self._one = (self._make_probe_call("key", "value", 0),)
        self._two = (*self._one, self._make_probe_call("key2", "value2", 1))
        self._results = (
            Message(role="tool", content=word["result"], name=word["tool"], tool_call_id="call_0"),
            Message(
                role="tool", content=self._second_result, name=word["tool"], tool_call_id="call_1"
            ),
        )

    def profile(self) -> TemplateProfile:
        fault = self._choose_dialect_of_text()
        without, full = self._render_or_empty([USER]), self._render_or_empty([USER], generate=True)
        generation = full[first_difference(without, full) :]
        opened = _THINKING.search(generation)
        call_fault = self._choose_dialect_of_calls()
        after_text = Ending(stop=SpecialToken("", -1), trailer="", closing="")
        after_calls = after_text
        try:
            after_text = after_calls = self._find_ending_after_text()
            if not call_fault:
                after_calls = self._find_ending_after_calls(after_text)
        except ConfigError as error:
            fault = fault or str(error)
        told = self._render_or_empty([USER], tools=True, generate=True)
        return TemplateProfile(
            dialect=self._dialect,
            fault=fault,
            after_text=after_text,
            after_calls=after_calls,
            shows_tools=all(self._words[word] in told for word in ("tool", "about", "key")),
            shows_calls=not call_fault,
            results_fault=self._find_why_tool_result_is_lost() if call_fault else "",
            parallel_calls=not call_fault and self._renders_parallel_calls(),
            generation=generation,
            opened_thinking=opened[0] if opened else "",
            shows_reasoning=self._set_reasoning_key_if_shown(),
        )

    def _render_or_empty(
        self, messages: Sequence[Message], *, tools: bool = False, generate: bool = False
    ) -> str:
        """The rendered text; empty if the template refuses."""
        try:
            return self._tokenizer.template.render(
                to_wire(messages, self._dialect),
                [self._tool.to_json()] if tools else (),
                add_generation_prompt=generate,
            )
        except ConfigError:
            return ""

    def _find_why_template_refuses(self, messages: Sequence[Message]) -> str:
        """Why the template does not render them; empty if it does."""
        try:
            self._tokenizer.template.render(
                to_wire(messages, self._dialect), add_generation_prompt=False
            )
        except ConfigError as error:
            return str(error)
        return ""

    def _choose_dialect_of_text(self) -> str:
        """Choose how text is passed; returns why the text of an assistant is lost, or nothing."""
        fault = ""
        for parts in (False, True):
            self._dialect = Dialect(content_as_parts=parts)
            if self._words["said"] in self._render_or_empty([USER, self._said]):
                break
        else:
            self._dialect = Dialect()
            fault = self._find_why_template_refuses([USER, self._said]) or (
                "the chat template changes earlier text when messages are added: for user, "
                "assistant, it drops what the assistant said; use a template that only appends"
            )
        if not self._renders_first_message_of_role("system"):
            self._dialect = replace(self._dialect, has_system=False)
        if not self._renders_first_message_of_role("developer"):
            self._dialect = replace(self._dialect, has_developer=False)
        if not self._render_or_empty([USER, USER]):
            self._dialect = replace(self._dialect, alternates=True)
        return fault

    def _renders_first_message_of_role(self, role: Role) -> bool:
        """Whether the template writes a first message of this role."""
        said = self._words["said"]
        return said in self._render_or_empty([Message(role=role, content=said), USER])

    def _choose_dialect_of_calls(self) -> str:
        """Choose how calls are passed; returns why no way keeps them, or nothing."""
        chat = [USER, Message(role="assistant", tool_calls=self._one), self._results[0]]
        faults: list[str] = []
        for silent, text in product((False, True), repeat=2):
            before = self._dialect
            self._dialect = replace(before, arguments_as_text=text, silent_as_none=silent)
            faults.append(self._explain_lost_call(chat))
            if not faults[-1]:
                return ""
            self._dialect = before
        return faults[0]

    def _explain_lost_call(self, chat: Sequence[Message]) -> str:
        try:
            text = self._tokenizer.template.render(
                to_wire(chat, self._dialect), [self._tool.to_json()], add_generation_prompt=True
            )
        except ConfigError as error:
            return str(error)
        names = {"tool": "name of a call", "key": "arguments of a call", "value": "arguments"}
        for word, what in {**names, "result": "result of a call"}.items():
            if self._words[word] not in text.split(self._words["about"])[-1]:
                return f"it drops the {what}: nothing of it is in the text for user, call, result"
        key = self._words["key"]
        if f"'{key}':" in text or f'\\"{key}' in text:
            return "it alters the arguments of a call: they are not the JSON that was given"
        return ""

    def _find_why_tool_result_is_lost(self) -> str:
        """Why a result is lost whose call is text of the assistant's message."""
        try:
            text = self._tokenizer.template.render(
                to_wire([USER, self._said, self._results[0]], self._dialect),
                add_generation_prompt=True,
            )
        except ConfigError as error:
            return str(error)
        if self._words["result"] in text:
            return ""
        return "it drops the result of a call: nothing of it is written for user, assistant, tool"

    def _renders_parallel_calls(self) -> bool:
        chat = [USER, Message(role="assistant", tool_calls=self._two), *self._results]
        text = self._render_or_empty(chat, tools=True, generate=True)
        words = [self._words[w] for w in ("key", "value", "key2", "value2", "result")]
        return all(word in text for word in (*words, self._second_result))

    def _set_reasoning_key_if_shown(self) -> bool:
        message = Message(role="assistant", content="Hi.", reasoning=self._words["said"])
        for key in _REASONING_KEYS:
            before = self._dialect
            self._dialect = replace(before, reasoning_key=key)
            if self._words["said"] in self._render_or_empty([USER, message]):
                return True
            self._dialect = before
        return False

    def _find_ending_after_text(self) -> Ending:
        alone = self._find_text_behind(self._render_or_empty([USER, self._said]), "said")
        whole = self._render_or_empty([USER, self._said, self._asked], generate=True)
        if not all(self._words[word] in whole for word in ("said", "result")):
            raise ConfigError(
                "the chat template changes earlier text when messages are added: for user, "
                "assistant, user, it drops what was said; use a template that only appends"
            )
        going_on = self._find_text_behind(whole, "said")
        ending = self._derive_turn_ending(alone, going_on, frozenset(), calls=False)
        before = self._render_or_empty([self._asked]).partition(self._words["result"])[0]
        return replace(
            ending, is_next_role=ending.stop.text in self._split_at_controls(before)[-2:-1]
        )

    def _find_ending_after_calls(self, after_text: Ending) -> Ending:
        calls = Message(role="assistant", tool_calls=self._one)
        alone = self._find_text_behind(self._render_or_empty([USER, calls], tools=True), "value")
        full = self._render_or_empty([USER, calls, self._results[0]], tools=True, generate=True)
        two = self._render_or_empty(
            [USER, Message(role="assistant", tool_calls=self._two)], tools=True
        )
        between, found, _ = two.rpartition(self._words["key2"])
        between = self._find_text_behind(between, "value") if found else ""
        inner = frozenset(self._tokenizer.control_pattern.findall(between))
        ending = self._derive_turn_ending(
            alone, self._find_text_behind(full, "value"), inner, calls=True
        )
        # A marker that a result brings without a call, or each result anew, is the result's.
        alone = self._find_text_behind(
            self._render_or_empty([USER, self._said, self._results[0]]), "said"
        )
        alone = alone.partition(self._words["result"])[0]
        several = self._render_or_empty(
            [USER, replace(calls, tool_calls=self._two), *self._results]
        )
        several = self._find_text_behind(several.partition(self._second_result)[0], "result")
        by_result = ending.stop.text in self._split_at_controls(alone + several)[1::2]
        by_result = by_result and ending.stop != after_text.stop
        return replace(ending, is_next_role=ending.is_next_role or by_result)

    def _find_text_behind(self, text: str, word: str) -> str:
        return text.rpartition(self._words[word])[2]

    def _derive_turn_ending(
        self, alone: str, going_on: str, inner: frozenset[str], *, calls: bool
    ) -> Ending:
        """From what stands behind the content at the end, and in the midst of a conversation.

        `inner` are control tokens that stand between two calls, so they end no message. What
        follows `calls` in history only belongs to their result.
        """
        last, history = self._split_at_controls(alone), self._split_at_controls(going_on)
        common = 0
        while common < min(len(last), len(history)) and last[common] == history[common]:
            common += 1
        ends = [i for i in range(1, common, 2) if last[i] not in inner]
        if ends:
            trailer = "".join(history[: ends[-1] + 1])
            stop = self._make_special_token(last[ends[-1]])
            return Ending(stop=stop, trailer=trailer, closing=stop.text)
        at = common | 1  # the next control token: texts stand at even places
        if at >= len(history):
            return self._make_ending_by_eos_token(alone, going_on)
        trailer, closing = "".join(history[: at + 1]), history[at]
        by_role = calls or at >= len(last)
        stop = self._make_special_token(closing if by_role else last[at])
        return Ending(stop=stop, trailer=trailer, closing=closing, is_next_role=by_role)

    def _make_special_token(self, text: str) -> SpecialToken:
        return SpecialToken(text, self._tokenizer.controls[text])

    def _make_ending_by_eos_token(self, alone: str, going_on: str) -> Ending:
        eos = self._tokenizer.eos_token
        if not going_on.startswith(alone):
            raise ConfigError(
                f"the chat template ends an assistant's message with {alone[:40]!r}, which is no "
                "control token of the tokenizer; use the tokenizer of the template's model"
            )
        if eos is None:
            raise ConfigError(
                "neither the chat template nor tokenizer_config.json says which token ends an "
                "assistant's turn; set eos_token"
            )
        return Ending(stop=SpecialToken("", eos.id), trailer=alone, closing="")

    def _split_at_controls(self, text: str) -> list[str]:
        """Text and control tokens in turn, beginning and ending with text."""
        return re.split(f"({self._tokenizer.control_pattern.pattern})", text)

    def _make_probe_call(self, key: str, value: str, number: int) -> ToolCall:
        words = self._words
        return ToolCall(
            name=words["tool"], arguments={words[key]: words[value]}, id=f"call_{number}"
        )
