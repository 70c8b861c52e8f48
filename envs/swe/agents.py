"""Agents for `swe_sandbox` without a model: one that knows the repair, one that knows nothing."""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

from agentrl.envs.agents import call_tool
from agentrl.envs.swe.repair import BuiltRepair, Repair, repair_of
from agentrl.envs.swe.seal import is_test
from agentrl.types import AssistantTurn, EpisodeView

_PATCH: Final = "/tmp/repair.patch"
_AROUND: Final = 5
_SWAPS: Final = (
    ("<=", "<"), (">=", ">"), ("==", "!="), (" < ", " <= "), (" > ", " >= "), (" + ", " - "),
    (" - ", " + "), (" and ", " or "), (" or ", " and "), (" not ", " "), ("True", "False"),
    ("False", "True"), (" is not ", " is "), ("if ", "if not "),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RepairAgent:
    """Makes the reference repair: looks at each place, replaces it, submits."""

    def act(self, view: EpisodeView) -> AssistantTurn:
        """The turn whose number is that of the assistant messages so far."""
        turns = _make_repair_turns(repair_of(view.task))
        return turns[min(_count_assistant_turns(view), len(turns) - 1)]


@functools.lru_cache(maxsize=64)
def _make_repair_turns(repair: Repair) -> Sequence[AssistantTurn]:
    turns: list[AssistantTurn] = []
    if isinstance(repair, BuiltRepair):
        broken, whole = repair.texts
        for file in sorted(broken):
            for edit in edits(broken[file], whole[file]):
                use = functools.partial(call_tool, "str_replace_editor", path=file)
                around = [max(1, edit.line - _AROUND), edit.line + _AROUND]
                turns.append(use(command="view", view_range=around))
                turns.append(use(command="str_replace", old_str=edit.old, new_str=edit.new))
        return (*turns, call_tool("submit"))
    patch, reverse = repair.patch()
    if patch:
        turns.append(call_tool("write_file", path=_PATCH, content=patch))
        turns.append(call_tool("bash", command=f"git apply{' -R' * reverse} {_PATCH}"))
    return (*turns, call_tool("submit"))


@dataclass(frozen=True, slots=True)
class EditCall:
    """A piece of a text that is in it once, and what takes its place."""

    line: int
    """From 1."""
    old: str
    new: str


def edits(before: str, after: str) -> Sequence[EditCall]:
    """What turns one text into another, one after the other, each with as few lines as it takes."""
    found: list[EditCall] = []
    old, new = before.split("\n"), after.split("\n")
    top = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    places = [
        (kind, i + top, j + top, k + top, m + top)
        for kind, i, j, k, m in SequenceMatcher(None, old[top:], new[top:], False).get_opcodes()
    ]
    # From the end, so that the places that are still to come keep their numbers.
    for kind, i, j, k, m in reversed(places):
        if kind == "equal":
            continue
        text = "\n".join(old)
        # Lines that go or come need a neighbour, whose line end goes or comes with them.
        alone = i == j or k == m
        above, below = int(alone and i > 0), int(alone and i == 0)
        while True:
            first, last = max(0, i - above), min(len(old), j + below)
            piece = "\n".join(old[first:last])
            if piece and text.find(piece) == text.rfind(piece):
                break
            if not text:  # earlier edits left nothing that the next could take hold of
                return [EditCall(line=1, old=before, new=after)]
            above, below = (above + 1, below) if above <= below else (above, below + 1)
        lines = [*old[first:i], *new[k:m], *old[j:last]]
        found.append(EditCall(line=i + 1, old=piece, new="\n".join(lines)))
        old[i:j] = new[k:m]
    return found


@dataclass(frozen=True, slots=True)
class SearchAgent:
    """Searches for the issue's words, changes the line with most of them, and submits.

    What it scores is what the issue gives away.
    """

    def act(self, view: EpisodeView) -> AssistantTurn:
        """Search, change, submit."""
        match _count_assistant_turns(view):
            case 0:
                words = sorted(_find_words(view.messages[-1].content), key=len, reverse=True)[:20]
                pattern = "|".join(words) or "def"
                return call_tool(
                    "bash", command=f"grep -rnwE --include='*.py' '{pattern}' . | head -200"
                )
            case 1:
                change = _guess_sed_fix(
                    view.messages[-1].content, _find_words(view.messages[-2].content)
                )
                return call_tool("bash", command=change) if change else call_tool("submit")
            case _:
                return call_tool("submit")


def _find_words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w{2,}", text))


def _guess_sed_fix(found: str, words: frozenset[str]) -> str:
    """A sed line that swaps an operator in the line that has most of the words."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for path, number, text in re.findall(r"^(?:\./)?([^:\n]+):(\d+):(.*)$", found, re.MULTILINE):
        swap = next((s for s in _SWAPS if s[0] in text), None)
        if swap and not is_test(path):
            counts[(path, number, *swap)] = len(words & _find_words(text))
    if not counts:
        return ""
    path, number, old, new = counts.most_common(1)[0][0]
    return f"sed -i '{number}s/{old}/{new}/' '{path}'"


def _count_assistant_turns(view: EpisodeView) -> int:
    return sum(message.role == "assistant" for message in view.messages)
