"""Whether a chat template can carry a conversation that grows: short conversations, tried out.

A template is *exact* if, turn by turn, its own rendering ends with exactly what the renderer
appends, and what stands before, the sampled turns among it, is either still its beginning (then
record and template agree in every token) or is rewritten by the template (then the record keeps it
verbatim). It is *forked* if that fails but every rendering holds all that was said, so that a new
segment can begin with it; else it is *refused*.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agentrl.errors import ConfigError
from agentrl.tokens.render import Reasoning, Renderer, describe_roles, not_preserving
from agentrl.tokens.template_probe import first_difference
from agentrl.types import Json, Message, ToolCall

Verdict = Literal["exact", "forked", "refused"]
Action = Literal["", "keep", "fork", "refuse"]
_DESCRIBED = {True: "yes", False: "no, described by us"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRow:
    """One thing that was tried."""

    name: str
    detail: str
    action: Action = ""
    """What the loop does about it; empty if nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateReport:
    """What was learnt about a template for one use."""

    rows: tuple[TemplateRow, ...]

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


def examine(renderer: Renderer, *, with_tools: bool) -> TemplateReport:
    """Try the template for conversations with or without tools; never raises for the template."""
    if fault := renderer.profile.fault:
        return TemplateReport(
            rows=(TemplateRow(name="conversation", detail=fault, action="refuse"),)
        )
    chats = [
        chat for chat in CHATS if with_tools or not any(message.tool_calls for message in chat)
    ]
    if not renderer.profile.parallel_calls and renderer.calls_in_template:
        chats = [chat for chat in chats if all(len(message.tool_calls) < 2 for message in chat)]
    rows = [_report_tried_chat(renderer, chat) for chat in chats]
    report = TemplateReport(rows=tuple(rows))
    if report.verdict == "refused":
        return report
    rows += _report_unwritable_spellings(renderer, with_tools)
    shown = [chat[-1].role != "assistant" for chat in chats]
    later = [row for row, goes_on in zip(rows, shown, strict=False) if goes_on]
    facts = (
        *_report_template_facts(renderer, rows, later),
        *_report_value_kinds(renderer, with_tools),
    )
    return TemplateReport(rows=(*facts, *rows))


def _report_template_facts(
    renderer: Renderer, rows: Sequence[TemplateRow], later: Sequence[TemplateRow]
) -> Iterator[TemplateRow]:
    profile, name = renderer.profile, renderer.name_of
    yield TemplateRow(
        name="prefix-preserving",
        detail=_describe_whether_template_keeps_sampled_text(renderer, rows, later),
    )
    stops = ", ".join(sorted(map(name, renderer.stop_ids)))
    by_role = "; the marker of the next role" if profile.after_text.is_next_role else ""
    yield TemplateRow(name="stop tokens", detail=f"{stops}{by_role}")
    yield TemplateRow(
        name="stop tokens are", detail="sampled by the model, and never added to its turn"
    )
    yield _report_suffix_of_messages(renderer, "separator", [_ASK], _describe_separator_of_suffix)
    yield _report_bos_count(renderer)
    opened = "opened by the prompt" if renderer.opens_thinking else "not opened by the prompt"
    shown = "shown" if profile.shows_reasoning else "not shown"
    yield TemplateRow(name="thinking", detail=f"{opened}, {shown} in the last message")
    yield TemplateRow(name="tools in the template", detail=_DESCRIBED[renderer.tools_in_template])
    yield TemplateRow(name="calls in the template", detail=_DESCRIBED[renderer.calls_in_template])
    several = profile.parallel_calls or not renderer.calls_in_template
    yield TemplateRow(name="calls of one turn", detail="several" if several else "one")
    system = "own" if profile.dialect.has_system else "in front of the first user message"
    developer = "own" if profile.dialect.has_developer else "as system"
    yield TemplateRow(name="roles", detail=f"system {system}, developer {developer}")


def _report_suffix_of_messages(
    renderer: Renderer, name: str, said: Sequence[Message], show: Callable[[str], str]
) -> TemplateRow:
    """What is appended when this is said; a template that only forks may have no such text."""
    try:
        return TemplateRow(name=name, detail=show(renderer.suffix(said)))
    except ConfigError as error:
        return TemplateRow(name=name, detail=str(error), action="fork")


def _describe_separator_of_suffix(suffix: str) -> str:
    return f"{suffix.partition(_ASK.content)[0]!r} (given by the environment)"


def _describe_whether_template_keeps_sampled_text(
    renderer: Renderer, rows: Sequence[TemplateRow], later: Sequence[TemplateRow]
) -> str:
    """Whether the template shows `later` what was sampled; thinking counts where it knows any."""
    kept = [row for row in later if row.action == "keep"]
    if any(renderer.knows_thinking or "reasoning" not in row.name for row in kept):
        return "not always; history is kept as it was sampled"
    others = any(row.action == "keep" for row in rows)
    return "yes" + ", for turns as it writes them; others are kept as sampled" * others


def _report_bos_count(renderer: Renderer) -> TemplateRow:
    text, count = renderer.bos
    if count <= 1:
        return TemplateRow(name="BOS", detail=f"{text}, once" if count else "none")
    detail = (
        f"the chat template writes the BOS {text} {count} times in a prompt of one message; "
        "use a template that writes it once, or set no bos_token"
    )
    return TemplateRow(name="BOS", detail=detail, action="refuse")


def _report_value_kinds(renderer: Renderer, with_tools: bool) -> Iterator[TemplateRow]:
    """How values of all kinds come out, and whether content can pose as scaffold."""
    if with_tools:
        arguments: dict[str, Json] = {"yes": True, "no": None, "text": "ü😀"}
        call = ToolCall(name="lookup", arguments=arguments, id="call_0")
        chat = (_ASK, Message(role="assistant", tool_calls=(call,)), _make_tool_message("ü😀"))
        text = renderer.text(chat).partition(_ASK.content)[2]
        forms = {"JSON": ("true", "null"), "Python": ("True", "None")}
        manner = [name for name, words in forms.items() if all(word in text for word in words)]
        yield TemplateRow(
            name="booleans and None", detail=f"written as in {' '.join(manner) or 'neither'}"
        )
        kept = text.count("ü😀") == 2
        yield TemplateRow(name="unicode", detail="kept" if kept else "escaped")
    answer = [_make_tool_message("")] if with_tools else [_make_user_message("")]
    yield _report_suffix_of_messages(
        renderer, "empty content", answer, lambda suffix: repr(suffix)[:70]
    )
    yield _report_if_answers_stay_unchanged(renderer, with_tools)
    yield _report_marker_injection(renderer)


def _report_if_answers_stay_unchanged(renderer: Renderer, with_tools: bool) -> TemplateRow:
    """Whether what answers a turn comes out once and unchanged, except at its ends."""
    what = "tool result" if with_tools else "user message"
    several = renderer.profile.parallel_calls or not renderer.calls_in_template
    tried = [[trial] for trial in _TRIALS]
    if with_tools and several:
        tried.append(["Result one.", "Result two."])
    for said in tried:
        answers = [
            _make_tool_message(t, i) if with_tools else _make_user_message(t)
            for i, t in enumerate(said)
        ]
        try:
            text = renderer.suffix(answers)
        except ConfigError as error:
            return TemplateRow(name=what, detail=str(error), action="fork")
        places = [_find_only_place_of_content(content, text) for content in said]
        for content, place in zip(said, places, strict=True):
            if place < 0 or places != sorted(places):
                shown = text if len(text) <= 160 else f"{text[:80]} ... {text[-80:]}"
                detail = (
                    f"the chat template drops, alters or repeats a {what}: {content[:40]!r}, of "
                    f"{len(content)} characters, should stand once and in order in "
                    f"{shown!r}; use a template that writes a {what} as it is"
                )
                return TemplateRow(name=what, detail=detail, action="refuse")
    return TemplateRow(name=what, detail="written once, unchanged")


def _find_only_place_of_content(content: str, text: str) -> int:
    """Where the content stands in the text, as it is or in JSON; -1 unless once."""
    plain = content.strip()
    escaped = [json.dumps(plain, ensure_ascii=ascii)[1:-1] for ascii in (False, True)]
    places = [text.find(form) for form in (plain, *escaped) if text.count(form) == 1]
    return max(places, default=-1)


def _report_marker_injection(renderer: Renderer) -> TemplateRow:
    evil = "x" + "".join(renderer.markers) + "x"
    chats = [
        (_make_user_message(t), _make_assistant_message(t), _make_user_message(t))
        for t in (evil, "x")
    ]
    hostile, harmless = (renderer.num_controls(chat) for chat in chats)
    if hostile == harmless:
        return TemplateRow(name="injection", detail=f"{len(renderer.markers)} markers stay text")
    detail = f"content makes {hostile - harmless} control tokens: for user, assistant, user"
    return TemplateRow(name="injection", detail=detail, action="refuse")


def _make_user_message(text: str) -> Message:
    return Message(role="user", content=text)


def _make_assistant_message(text: str = "", calls: int = 0) -> Message:
    made = tuple(
        ToolCall(name="lookup", arguments={f"key{i}": f"value{i}"}, id=f"call_{i}")
        for i in range(calls)
    )
    return Message(role="assistant", content=text, tool_calls=made)


def _make_tool_message(text: str, number: int = 0) -> Message:
    return Message(role="tool", content=text, name="lookup", tool_call_id=f"call_{number}")


_ASK, _MORE, _LAST = (
    _make_user_message("First ask."),
    _make_user_message("Second ask."),
    _make_user_message("Third ask."),
)
_SAY, _CALL = _make_assistant_message("Some answer."), _make_assistant_message(calls=1)
_THOUGHT, _THOUGHT_CALL = (replace(turn, reasoning="Some thought.") for turn in (_SAY, _CALL))
_RESULT = _make_tool_message("Result one.")
_SYSTEM = Message(role="system", content="Some rule.")
_TRIALS = (
    "".join(f"{i}. A line  of text\n\twith another.\n\n" for i in range(9)),
    "Text <b>&amp; \"q\" & 's'</b> [x] {y} \\n $z 100 %_*é.",
    '{"key": [1, null, true], "other": {"text": "a b"}}',
    "".join(f"{i:07} " for i in range(2500)),
)
"""Contents that a template may cut, escape or rewrite."""
CHATS: tuple[tuple[Message, ...], ...] = (
    (_ASK, _SAY),
    (_ASK, _SAY, _MORE),
    (_ASK, _CALL, _RESULT),
    (_SYSTEM, _ASK, _SAY, _MORE),
    (_ASK, _THOUGHT),
    (_ASK, _THOUGHT, _MORE),
    (_ASK, _CALL),
    (_ASK, _THOUGHT_CALL, _RESULT),
    (_ASK, _make_assistant_message("Some words.", calls=1), _RESULT),
    (_ASK, _make_assistant_message(calls=2), _RESULT, _make_tool_message("Result two.", 1)),
    (_ASK, _CALL, _RESULT, _MORE),
    (_ASK, _THOUGHT_CALL, _RESULT, _THOUGHT, _MORE),
    (_ASK, _SAY, _MORE, _make_assistant_message("More words."), _LAST),
    (_ASK, _CALL, _RESULT, _SAY, _MORE),
    (_ASK, _CALL, _RESULT, _make_assistant_message(calls=1), _make_tool_message("Result two.")),
    (_ASK, _CALL, _RESULT, _SAY, _MORE, _CALL, _make_tool_message("Result three.")),
)


def _report_tried_chat(renderer: Renderer, chat: Sequence[Message]) -> TemplateRow:
    rewritten, record = "", ""
    places = [i for i, message in enumerate(chat) if message.role == "assistant"]
    for begin, end in zip(places, [*places[1:], len(chat)], strict=True):
        so_far, answers = chat[:end], chat[begin + 1 : end]
        try:
            before = renderer.text(chat[:begin])
            whole = renderer.text(so_far, generate=bool(answers))
        except ConfigError as error:
            return TemplateRow(name=_name_chat(chat), detail=str(error), action="refuse")
        if lost := _find_said_word_not_in_text(so_far, whole):
            detail = (
                "the chat template changes earlier text when messages are added: for "
                f"{describe_roles(so_far)}, it drops or alters {lost!r}; use a template that only "
                "appends"
            )
            return TemplateRow(name=_name_chat(chat), detail=detail, action="refuse")
        if answers and (fault := _explain_unappendable_answer(renderer, so_far, begin, whole)):
            return TemplateRow(name=_name_chat(chat), detail=fault, action="fork")
        try:
            record = (record or before) + renderer.spoken(chat[begin])
            record += renderer.suffix(answers) if answers else ""
        except ConfigError as error:
            return TemplateRow(name=_name_chat(chat), detail=str(error), action="keep")
        rewritten = rewritten or _describe_rewriting_of_record(so_far, record, whole)
    return TemplateRow(
        name=_name_chat(chat), detail=rewritten or "kept", action="keep" if rewritten else ""
    )


def _name_chat(chat: Sequence[Message]) -> str:
    """Its roles, and where words stand beside a call, that too: no two of `CHATS` share one."""
    words = any(message.tool_calls and message.content for message in chat)
    return describe_roles(chat) + ", with words beside the call" * words


def _describe_rewriting_of_record(chat: Sequence[Message], record: str, whole: str) -> str:
    """What the template shows in place of what the record keeps; empty if they agree."""
    is_last = chat[-1].role == "assistant"  # then a line break may follow, or the stop be left out
    if whole == record or (is_last and (whole.startswith(record) or record.startswith(whole))):
        return ""
    at = first_difference(record, whole)
    return (
        f"for {describe_roles(chat)}, the record keeps {_excerpt_word_at(record, at)!r}; a server "
        f"that renders the plain chat template would show {_excerpt_word_at(whole, at)!r}"
    )


def _excerpt_word_at(text: str, at: int) -> str:
    """The text from the word on in which it differs."""
    begin = max(text.rfind(end, max(at - 12, 0), at) for end in " \n<")
    return text[at if begin < 0 else begin + (text[begin] != "<") :][:60]


def _report_unwritable_spellings(renderer: Renderer, with_tools: bool) -> Iterator[TemplateRow]:
    """Turns that a model may write and a template cannot, since messages do not say how."""
    answer, words, stop = _SAY.content, "Some words.", renderer.profile.after_text.stop.text
    blank = f" \n{answer}\n "
    chat = (_ASK, _make_assistant_message(blank), _MORE)
    yield from _report_spelling_of_chat(renderer, "blanks around an answer", chat, {answer: blank})
    if with_tools:
        stop = renderer.profile.after_calls.stop.text if renderer.calls_in_template else stop
        chat = (_ASK, _make_assistant_message(words, calls=1), _RESULT)
        yield from _report_spelling_of_chat(
            renderer, "words behind a call", chat, {words: "", stop: words + stop}
        )
        chat = (_ASK, _CALL, _RESULT)
        yield from _report_spelling_of_chat(
            renderer, "arguments without blanks", chat, {'"key0": ': '"key0":'}
        )


def _report_spelling_of_chat(
    renderer: Renderer, name: str, chat: Sequence[Message], edits: Mapping[str, str]
) -> Iterator[TemplateRow]:
    """The row of a chat whose turn the model writes with `edits` of the template's writing."""
    ask, turn, answer = chat
    try:
        written = renderer.spoken(replace(turn, content=turn.content.strip()))
        spoken = written
        for old, new in edits.items():
            spoken = new.join(spoken.rsplit(old, 1)) if old else spoken + new
        record = renderer.text([ask]) + spoken + renderer.suffix([answer])
        rewritten = _describe_rewriting_of_record(chat, record, renderer.text(chat))
    except ConfigError as error:
        rewritten = str(error)
    else:
        if spoken == written:
            return
    yield TemplateRow(name=name, detail=rewritten or "kept", action="keep" if rewritten else "")


def _explain_unappendable_answer(
    renderer: Renderer, chat: Sequence[Message], begin: int, whole: str
) -> str:
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


def _find_said_word_not_in_text(chat: Sequence[Message], text: str) -> str:
    """Something said that is not in the text; the words beside a call may be left out."""
    for message in chat:
        words = [] if message.tool_calls else [message.content]
        for call in message.tool_calls:
            words += [call.name, *call.arguments, *map(str, call.arguments.values())]
        for word in words:
            if word not in text:
                return word
    return ""
