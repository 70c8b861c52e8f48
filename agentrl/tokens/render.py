"""`Renderer`: messages to ids, by the tokenizer's own chat template.

The first prompt is rendered whole. Later messages are rendered as a suffix: what they add to a
synthetic conversation behind the stop token of its last assistant message. Whatever the template
writes after that stop token (often a line break) is therefore the beginning of the observation.
"""

import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby

from agentrl.errors import ConfigError
from agentrl.tokens.formats.base import ToolFormat
from agentrl.tokens.formats.hermes import Hermes
from agentrl.tokens.provenance import ContentGuard
from agentrl.tokens.tokenizer import SpecialToken, Tokenizer
from agentrl.types import (
    AssistantTurn,
    Message,
    StopReason,
    ToolCall,
    ToolSchema,
)

_USER = Message(role="user", content="Hello")


class Renderer:
    """Renders for one set of tools; thread-safe.

    Message texts, tool results, names, arguments and descriptions are content: no control token
    comes from them. Where the template knows no tools (`tools_in_template` is false), the tools are
    described in the system message, calls are written into the assistant's text, and the results of
    one turn become one user message with `<tool_response>` blocks, all in the Hermes format.
    """

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[ToolSchema] = ()) -> None:
        self._tokenizer = tokenizer
        self._guard = ContentGuard(tokenizer)
        self._tools = tuple(self._marked_tool(tool) for tool in tools)
        self._format: ToolFormat = Hermes(tokenizer)
        self._probe = f"probe{secrets.token_hex(8)}"

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the conversation so far, up to where the assistant speaks.

        Begins with exactly one BOS if the template or the tokenizer has one. Raises ConfigError if
        the template refuses the roles.
        """
        return self._with_bos(self._guard.encode(self._render(messages, generate=True)))

    def observation(self, messages: Sequence[Message]) -> list[int]:
        """Ids to append behind a sampled stop token for new tool or user messages.

        They begin with the separator that the template writes after the stop token and end where
        the assistant speaks again. Consecutive tool results are one unit. Raises ConfigError if the
        template does not keep what came before.
        """
        if not messages:
            raise ValueError("no messages to observe were given; expected at least one")
        before = [_USER, self._synthetic_assistant(messages)]
        head = self._up_to_stop(self._render(before))
        full = self._render([*before, *messages], generate=True)
        if not full.startswith(head):
            raise ConfigError(_not_preserving([*before, *messages], head, full))
        return self._encode_after_stop(full[len(head) :])

    def assistant(self, turn: AssistantTurn) -> list[int]:
        """Ids that a model would sample for `turn`, with the stop token unless it was cut off.

        Calls that could not be parsed are left out.
        """
        head = self._render([_USER], generate=True)
        full = self._render([_USER, turn.message()], sampled=True)
        if not full.startswith(head):
            raise ConfigError(_not_preserving([_USER, turn.message()], head, full))
        body = self._up_to_stop(full)[len(head) :]
        ids = self._guard.encode(body)
        if not self._stop_text:
            ids.append(self._stop.id)
        return ids[:-1] if turn.stop_reason is StopReason.LENGTH else ids

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """What ends an assistant's turn: the template's token, and the end-of-text token."""
        eos = self._tokenizer.eos_token
        return frozenset({self._stop.id} | ({eos.id} if eos else set()))

    @cached_property
    def tools_in_template(self) -> bool:
        """True if the chat template renders tools."""
        tool = ToolSchema(name=self._probe, description="", parameters={"type": "object"})
        text = self._tokenizer.template.render(
            [self._plain_message(_USER)],
            [tool.to_json()],
            add_generation_prompt=True,
        )
        return self._probe in text

    def check(self) -> list[str]:
        """Try the template on short conversations; returns what was learnt, a line each.

        Raises ConfigError with the shortest conversation that shows it if a later message changes
        how earlier ones are rendered, or if prompt, turn and observation together are not the ids
        of the whole conversation.
        """
        result = Message(role="tool", content="4", name="probe", tool_call_id="call_0")
        call = ToolCall(name="probe", arguments={"x": 2}, id="call_0")
        one, two = (call,), (call, ToolCall(name="probe", arguments={"x": 3}, id="call_1"))
        self._check_pair(AssistantTurn(text="Hi."), [Message(role="user", content="Again.")])
        self._check_pair(AssistantTurn(text="", calls=one), [result])
        self._check_pair(AssistantTurn(text="Both.", calls=two), [result, result])
        separator = self._tokenizer.decode(self.observation([_USER])[:1])
        stops = sorted(map(self._name, self.stop_ids))
        bos = self._tokenizer.bos_token
        return [
            "prefix-preserving: yes",
            f"stop tokens: {', '.join(stops)}",
            f"first token after a stop token: {separator!r}",
            f"BOS: {bos.text if bos and self.prompt([_USER])[0] == bos.id else 'none'}",
            f"tools in the template: {'yes' if self.tools_in_template else 'no, described by us'}",
        ]

    def _check_pair(self, turn: AssistantTurn, messages: Sequence[Message]) -> None:
        conversation = [_USER, turn.message(), *messages]
        parts = [*self.prompt([_USER]), *self.assistant(turn), *self.observation(messages)]
        whole = self.prompt(conversation)
        if parts != whole:
            decode = self._tokenizer.decode
            raise ConfigError(_not_preserving(conversation, decode(parts), decode(whole)))

    def _name(self, number: int) -> str:
        return f"{self._tokenizer.decode([number])} ({number})"

    @cached_property
    def _stop(self) -> SpecialToken:
        """The last control token that the template writes behind an assistant's text."""
        text = self._render([_USER, Message(role="assistant", content=self._probe)])
        behind = text[text.rindex(self._probe) :]
        found = self._tokenizer.control_pattern.findall(behind)
        if found:
            return SpecialToken(found[-1], self._tokenizer.controls[found[-1]])
        if self._tokenizer.eos_token is None:
            raise ConfigError(
                "neither the chat template nor tokenizer_config.json says which token ends an "
                "assistant's turn; set eos_token"
            )
        return SpecialToken("", self._tokenizer.eos_token.id)

    @property
    def _stop_text(self) -> str:
        """Empty if the template writes no stop token, so that the end-of-text token is it."""
        return self._stop.text

    def _up_to_stop(self, text: str) -> str:
        if not self._stop_text:
            return text
        return text[: text.rindex(self._stop_text) + len(self._stop_text)]

    def _encode_after_stop(self, suffix: str) -> list[int]:
        """Ids of text that follows the stop token, which may swallow white space behind it."""
        ids = self._guard.encode(self._stop_text + suffix)
        return ids[1:] if self._stop_text else ids

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self._tokenizer.bos_token
        if bos and self._tokenizer.adds_bos and ids[:1] != [bos.id]:
            return [bos.id, *ids]
        return ids

    def _synthetic_assistant(self, messages: Sequence[Message]) -> Message:
        """An assistant message that `messages` may follow: it makes the calls they answer."""
        results = [message for message in messages if message.role == "tool"]
        calls = tuple(
            ToolCall(name=r.name or "tool", id=r.tool_call_id or f"call_{i}")
            for i, r in enumerate(results)
        )
        return Message(role="assistant", content=self._probe, tool_calls=calls)

    def _render(
        self, messages: Sequence[Message], *, generate: bool = False, sampled: bool = False
    ) -> str:
        """The marked text of a conversation.

        With `sampled`, reasoning is written even where the template drops it.
        """
        if self.tools_in_template:
            dicts = [self._plain_message(m) for m in messages]
            tools: Sequence[Mapping[str, object]] = [tool.to_json() for tool in self._tools]
        else:
            dicts, tools = self._without_tools(messages), []
        if sampled and messages[-1].reasoning and not self._reasoning_in_template:
            reasoning = self._guard.mark(messages[-1].reasoning)
            dicts[-1]["content"] = (
                f"{self._format.render_reasoning(reasoning)}{dicts[-1]['content']}"
            )
        return self._tokenizer.template.render(dicts, tools, add_generation_prompt=generate)

    @cached_property
    def _reasoning_in_template(self) -> bool:
        message = Message(role="assistant", content="Hi.", reasoning=self._probe)
        dicts = [self._plain_message(_USER), self._plain_message(message)]
        text = self._tokenizer.template.render(dicts, add_generation_prompt=False)
        return self._probe in text

    def _plain_message(self, message: Message) -> dict[str, object]:
        """The message as templates expect it, its content marked."""
        mark = self._guard.mark
        entry: dict[str, object] = {"role": message.role, "content": mark(message.content)}
        if message.tool_calls:
            entry["tool_calls"] = [
                {
                    "type": "function",
                    "id": mark(call.id),
                    "function": {
                        "name": mark(call.name),
                        "arguments": self._guard.mark_mapping(call.arguments),
                    },
                }
                for call in message.tool_calls
            ]
        if message.reasoning:
            entry["reasoning_content"] = mark(message.reasoning)
        if message.tool_call_id:
            entry["tool_call_id"] = mark(message.tool_call_id)
        if message.name:
            entry["name"] = mark(message.name)
        return entry

    def _without_tools(self, messages: Sequence[Message]) -> list[dict[str, object]]:
        """Messages for a template that knows neither tools nor calls nor results."""
        dicts: list[dict[str, object]] = []
        for is_tool, run in groupby(messages, key=lambda message: message.role == "tool"):
            if is_tool:
                results = [self._guard.mark(message.content) for message in run]
                content = self._format.render_results(results)
                dicts.append({"role": "user", "content": content})
            else:
                dicts.extend(self._textual(message) for message in run)
        if self._tools:
            _add_to_system(dicts, self._format.instructions(self._tools))
        return dicts

    def _textual(self, message: Message) -> dict[str, object]:
        content = self._guard.mark(message.content)
        if message.tool_calls:
            calls = self._format.render_calls([self._marked_call(c) for c in message.tool_calls])
            content = f"{content}\n{calls}" if content else calls
        return {"role": message.role, "content": content}

    def _marked_call(self, call: ToolCall) -> ToolCall:
        arguments = self._guard.mark_mapping(call.arguments)
        return ToolCall(name=self._guard.mark(call.name), arguments=arguments)

    def _marked_tool(self, tool: ToolSchema) -> ToolSchema:
        return ToolSchema(
            name=self._guard.mark(tool.name),
            description=self._guard.mark(tool.description),
            parameters=self._guard.mark_mapping(tool.parameters),
        )


def _add_to_system(dicts: list[dict[str, object]], instructions: str) -> None:
    if dicts and dicts[0]["role"] in ("system", "developer"):
        dicts[0]["content"] = f"{dicts[0]['content']}\n\n{instructions}"
    else:
        dicts.insert(0, {"role": "system", "content": instructions})


def _not_preserving(conversation: Sequence[Message], expected: str, got: str) -> str:
    """What a template does that breaks the record, with the conversation that shows it."""
    same = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    at = min(len(expected), len(got)) if same is None else same
    roles = ", ".join(
        f"{message.role} with calls" if message.tool_calls else message.role
        for message in conversation
    )
    return (
        f"the chat template changes earlier text when messages are added: for {roles}, it writes "
        f"{got[at : at + 40]!r} where {expected[at : at + 40]!r} stood; "
        "use a template that only appends"
    )
