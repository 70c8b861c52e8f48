"""Whether a chat template can carry a conversation that grows: short conversations, tried out.

A template is *exact* if, turn by turn, its own rendering ends with exactly what the renderer
appends, and what was appended before is either still its beginning (then record and template agree
in every token) or is rewritten by the template (then the record keeps it verbatim). It is *forked*
if that fails but every rendering holds all that was said, so that a new segment can begin with it;
else it is *refused*.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.errors import ConfigError
from agentrl.tokens.render import Reasoning, Renderer, not_preserving, roles
from agentrl.types import Message, ToolCall

Verdict = Literal["exact", "forked", "refused"]
Action = Literal["", "keep", "fork", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that was tried."""

    name: str
    detail: str
    action: Action = ""
    """What the loop does about it; empty if nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was learnt about a template for one use."""

    rows: tuple[Row, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the rows."""
        actions = {row.action for row in self.rows}
        return "refused" if "refuse" in actions else "forked" if "fork" in actions else "exact"

    @property
    def reason(self) -> str:
        """Why it is worse than exact, by the shortest conversation that shows it."""
        worst = {"refused": "refuse", "forked": "fork"}.get(self.verdict, "none")
        return next((row.detail for row in self.rows if row.action == worst), "")

    def require(self, reasoning: Reasoning) -> None:
        """Raises ConfigError unless the template can be used under this policy."""
        if self.verdict == "refused":
            raise ConfigError(self.reason)
        if self.verdict == "forked" and reasoning != "fork":
            raise ConfigError(f"{self.reason}, or set rollout.reasoning to fork")


def examine(renderer: Renderer, *, with_tools: bool) -> Report:
    """Try the template for conversations with or without tools; never raises for the template."""
    chats = [
        chat for chat in CHATS if with_tools or not any(message.tool_calls for message in chat)
    ]
    if not renderer.profile.parallel_calls and renderer.calls_in_template:
        chats = [chat for chat in chats if all(len(message.tool_calls) < 2 for message in chat)]
    rows = [_tried(renderer, chat) for chat in chats]
    report = Report(rows=tuple(rows))
    if report.verdict != "refused":
        rows = [*_facts(renderer), *rows]
    return Report(rows=tuple(rows))


def _facts(renderer: Renderer) -> Iterator[Row]:
    profile, name = renderer.profile, renderer.name_of
    yield Row(name="prefix-preserving", detail="yes")
    yield Row(name="stop tokens", detail=", ".join(sorted(map(name, renderer.stop_ids))))
    first = renderer.suffix([_ASK])
    yield Row(name="separator", detail=repr(first.partition(_ASK.content)[0]))
    yield Row(name="BOS", detail=renderer.bos)
    shown = "yes" if renderer.tools_in_template else "no, described by us"
    yield Row(name="tools in the template", detail=shown)
    if profile.opened_thinking:
        yield Row(name="thinking", detail="the prompt opens a thinking block")


def _user(text: str) -> Message:
    return Message(role="user", content=text)


def _assistant(text: str = "", calls: int = 0, reasoning: str = "") -> Message:
    made = tuple(
        ToolCall(name="lookup", arguments={f"key{i}": f"value{i}"}, id=f"call_{i}")
        for i in range(calls)
    )
    return Message(role="assistant", content=text, tool_calls=made, reasoning=reasoning)


def _result(text: str, number: int = 0) -> Message:
    return Message(role="tool", content=text, name="lookup", tool_call_id=f"call_{number}")


_ASK, _MORE, _LAST = _user("First ask."), _user("Second ask."), _user("Third ask.")
_SAY, _CALL = _assistant("Some answer."), _assistant(calls=1)
_RESULT = _result("Result one.")
_SYSTEM = Message(role="system", content="Some rule.")
CHATS: tuple[tuple[Message, ...], ...] = (
    (_ASK, _SAY, _MORE),
    (_ASK, _CALL, _RESULT),
    (_SYSTEM, _ASK, _SAY, _MORE),
    (_ASK, _assistant("Some answer.", reasoning="Some thought."), _MORE),
    (_ASK, _assistant("Some words.", calls=1), _RESULT),
    (_ASK, _assistant(calls=2), _RESULT, _result("Result two.", 1)),
    (_ASK, _CALL, _RESULT, _MORE),
    (_ASK, _SAY, _MORE, _assistant("More words."), _LAST),
    (_ASK, _CALL, _RESULT, _SAY, _MORE),
    (_ASK, _CALL, _RESULT, _assistant(calls=1), _result("Result two.")),
    (_ASK, _CALL, _RESULT, _SAY, _MORE, _CALL, _result("Result three.")),
)


def _tried(renderer: Renderer, chat: Sequence[Message]) -> Row:
    rewritten = ""
    for begin, end in _turns(chat):
        so_far = chat[:end]
        try:
            before, whole = renderer.text(chat[:begin]), renderer.text(so_far)
        except ConfigError as error:
            return Row(name=roles(so_far), detail=str(error), action="refuse")
        if lost := _lost(so_far, whole):
            detail = (
                "the chat template changes earlier text when messages are added: for "
                f"{roles(so_far)}, it drops or alters {lost!r}; use a template that only appends"
            )
            return Row(name=roles(so_far), detail=detail, action="refuse")
        if fault := _fault(renderer, so_far, begin, whole):
            return Row(name=roles(so_far), detail=fault, action="fork")
        if not whole.startswith(before):
            rewritten = rewritten or not_preserving(so_far, before, whole)
    return Row(name=roles(chat), detail=rewritten or "kept", action="keep" if rewritten else "")


def _fault(renderer: Renderer, chat: Sequence[Message], begin: int, whole: str) -> str:
    """Why the answer to the turn at `begin` cannot be appended; empty if it can."""
    turn, answer = chat[begin], chat[begin + 1 :]
    try:
        suffix = renderer.suffix(answer)
    except ConfigError as error:
        return str(error)
    if whole.endswith(suffix):
        return ""
    # Words beside a call that the template writes behind its result are a rewriting of the turn.
    behind = whole.partition(answer[0].content)[2]
    moved = turn.tool_calls and turn.content and turn.content in behind
    return "" if moved else not_preserving(chat, suffix, whole[-len(suffix) :])


def _turns(chat: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Where each assistant's message is, and where what answers it ends."""
    places = [i for i, message in enumerate(chat) if message.role == "assistant"]
    yield from zip(places, [*places[1:], len(chat)], strict=True)


def _lost(chat: Sequence[Message], text: str) -> str:
    """Something said that is not in the text; the words beside a call may be left out."""
    for message in chat:
        words = [] if message.tool_calls else [message.content]
        for call in message.tool_calls:
            words += [call.name, *call.arguments, *map(str, call.arguments.values())]
        for word in words:
            if word not in text:
                return word
    return ""
