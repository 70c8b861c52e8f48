"""Messages as the dictionaries that a chat template reads, in the dialect of that template.

`find_frame` finds what the template writes around contents, so that it need not be run every time.
A frame comes from rendering messages with secret contents, and is believed only if it gives what
the template gives for contents of all kinds, and if the template's source looks for nothing in
contents that could be in a harmless one.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from agentrl.errors import ConfigError
from agentrl.tokens.formats.base import ToolFormat
from agentrl.tokens.injection_guard import Mark, mark_json
from agentrl.types import Json, Message, ToolCall, ToolSchema

Wire = dict[str, object]
_SCHEMA_WORDS = frozenset(
    """
    type properties required items enum description title default format const examples object
    string integer number boolean array null anyOf oneOf allOf not additionalProperties nullable
    minimum maximum minLength maxLength minItems maxItems uniqueItems pattern $ref $defs definitions
    return
    """.split()  # noqa: SIM905 - a list would take forty lines
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a template wants to be given what all templates are given."""

    content_as_parts: bool = False
    """Text as `[{"type": "text", "text": ...}]` instead of a string."""
    arguments_as_text: bool = False
    """A call's arguments as JSON text instead of a mapping."""
    silent_as_none: bool = False
    """The content of an assistant that calls is None; words beside calls would hide the calls."""
    reasoning_key: str = "reasoning_content"
    has_system: bool = True
    """False: a system message is put in front of the first user message."""
    has_developer: bool = True
    """False: a developer message is given as a system message."""
    alternates: bool = False
    """True: two user messages in a row are refused, so they are joined."""


def to_wire(messages: Sequence[Message], dialect: Dialect) -> list[Wire]:
    """The messages as the template reads them."""
    return [
        _message_to_template_dict(message, dialect)
        for message in _arrange_roles_for_template(messages, dialect)
    ]


def mark_message(message: Message, mark: Mark) -> Message:
    """The message with every text of it marked."""
    return Message(
        role=message.role,
        content=mark(message.content),
        tool_calls=tuple(
            ToolCall(
                name=mark(call.name),
                arguments=_mark_keys_and_values(call.arguments, mark),
                id=mark(call.id),
            )
            for call in message.tool_calls
        ),
        reasoning=mark(message.reasoning),
        tool_call_id=mark(message.tool_call_id),
        name=mark(message.name),
    )


def mark_tool(tool: ToolSchema, mark: Mark) -> ToolSchema:
    """The tool with its name, description and schema marked.

    The words of JSON schemas stay as they are: templates look them up.
    """
    return ToolSchema(
        name=mark(tool.name),
        description=mark(tool.description),
        parameters=_mark_keys_and_values(
            tool.parameters, lambda s: s if s in _SCHEMA_WORDS else mark(s)
        ),
    )


def calls_as_text(messages: Sequence[Message], form: ToolFormat, *, results: bool) -> list[Message]:
    """The messages with calls written into their contents, and each result between markers."""
    told = [_write_calls_into_content(message, form) for message in messages]
    if not results:
        return told
    return [
        replace(m, content=form.render_results([m.content])) if m.role == "tool" else m
        for m in told
    ]


def results_as_user(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """The messages with each run of results as one message of the user."""
    told: list[Message] = []
    for is_tool, run in groupby(messages, key=lambda message: message.role == "tool"):
        if is_tool:
            results = [message.content for message in run]
            told.append(Message(role="user", content=form.render_results(results)))
        else:
            told.extend(run)
    return told


def with_instructions(messages: Sequence[Message], instructions: str) -> list[Message]:
    """The messages with a text at the end of the system message, or as one."""
    if messages and messages[0].role in ("system", "developer"):
        content = f"{messages[0].content}\n\n{instructions}"
        return [replace(messages[0], content=content), *messages[1:]]
    return [Message(role="system", content=instructions), *messages]


def _message_to_template_dict(message: Message, dialect: Dialect) -> Wire:
    entry: Wire = {"role": message.role, "content": message.content}
    if dialect.content_as_parts:
        entry["content"] = [{"type": "text", "text": message.content}]
    if message.tool_calls:
        entry["tool_calls"] = [_call_to_template_dict(call, dialect) for call in message.tool_calls]
        if dialect.silent_as_none:
            entry["content"] = None
    if message.reasoning:
        entry[dialect.reasoning_key] = message.reasoning
    if message.tool_call_id:
        entry["tool_call_id"] = message.tool_call_id
    if message.name:
        entry["name"] = message.name
    return entry


def _call_to_template_dict(call: ToolCall, dialect: Dialect) -> Wire:
    arguments: object = call.arguments
    if dialect.arguments_as_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"type": "function", "id": call.id, "function": function}


def _arrange_roles_for_template(messages: Sequence[Message], dialect: Dialect) -> list[Message]:
    """The messages under roles, and in an order of roles, that the template accepts."""
    placed: list[Message] = []
    front: list[str] = []
    for message in messages:
        role = message.role
        if role == "developer" and not dialect.has_developer:
            role = "system"
        if role == "system" and not dialect.has_system:
            front.append(message.content)
            continue
        if role == "user" and front:
            content = "\n\n".join([*front, message.content])
            message, front = replace(message, content=content), []
        if dialect.alternates and role == "user" and placed and placed[-1].role == "user":
            joined = f"{placed[-1].content}\n\n{message.content}"
            placed[-1] = replace(placed[-1], content=joined)
        else:
            placed.append(replace(message, role=role) if role != message.role else message)
    if front:
        placed.append(Message(role="user", content="\n\n".join(front)))
    return placed


def _write_calls_into_content(message: Message, form: ToolFormat) -> Message:
    if not message.tool_calls:
        return message
    calls = form.render_calls(message.tool_calls)
    content = f"{message.content}\n{calls}" if message.content else calls
    return replace(message, content=content, tool_calls=())


def _mark_keys_and_values(value: Mapping[str, Json], mark: Mark) -> dict[str, Json]:
    return {mark(key): mark_json(item, mark) for key, item in value.items()}


Suffix = Callable[[Sequence[Message]], str]

_TRIALS = (
    " a ",
    "\n\nlines\n\n",
    "\ttab",
    '"quoted" \\ back\\n',
    "it's",
    "Zähle 日本語 🙂 e\u0301\u200b\ufeff",
    '{"a": [1, null]}',
    "a & b; 100 % {{ x }} {% y %} # $ ~ ^ `",
    "0",
    "null",
    "True",
    "x" * 20_000,
    "line\n" * 300,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """Text around contents; without `parts`, no frame holds."""

    parts: tuple[str, ...] = ()
    trims: bool = False

    def around(self, contents: Sequence[str]) -> str:
        """The text with these contents; empty if no frame holds."""
        if not self.parts:
            return ""
        pieces = [self.parts[0]]
        for content, part in zip(contents, self.parts[1:], strict=True):
            if self.trims:
                content = content.strip()
                if not content:
                    return ""
            pieces += (content, part)
        return "".join(pieces)


def find_frame(suffix: Suffix, messages: Sequence[Message], verbatim: bool) -> Frame:
    """The frame of messages like these, or one without parts.

    `suffix` renders messages; `verbatim` says that the template's source looks for nothing in them.
    """
    try:
        return _derive_frame_around_contents(suffix, messages) if verbatim else Frame()
    except ConfigError:
        return Frame()


def _derive_frame_around_contents(suffix: Suffix, messages: Sequence[Message]) -> Frame:
    words = [f"{secrets.token_hex(8)}x" for _ in messages]
    text = suffix(_copy_messages_with_contents(messages, words))
    parts: list[str] = []
    for word in words:
        part, found, text = text.partition(word)
        if not found or word in text:
            return Frame()
        parts.append(part)
    for trims in (False, True):
        frame = Frame((*parts, text), trims)
        tried = [[trial] * len(messages) for trial in _TRIALS]
        if all(
            suffix(_copy_messages_with_contents(messages, said)) == frame.around(said)
            for said in tried
        ):
            return frame
    return Frame()


def _copy_messages_with_contents(
    messages: Sequence[Message], contents: Sequence[str]
) -> list[Message]:
    return [replace(m, content=content) for m, content in zip(messages, contents, strict=True)]
