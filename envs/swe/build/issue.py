"""Issue texts: what goes wrong, in the words of somebody who uses the package.

They are made from calls that end another way than they should. They name neither a test nor
anything that was changed: a call of a changed function is told by its arguments and result alone.
"""

import random
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final

from agentrl.envs.swe.build.behaviour import Behaviour, Call

_MOST_EXAMPLES: Final = 3
_MOST_CHARS: Final = 110
_PLAIN: Final = re.compile(r"(?!__)[^<]*")
_UNSTEADY: Final = re.compile(r"0x[0-9a-f]{6,}|<\?>|/tmp/")
_OPENINGS: Final = (
    "Something in `{area}` is wrong since the last change.",
    "I get wrong answers from `{area}`.",
    "`{area}` does not do what its documentation says.",
    "After an update, code of ours that uses `{area}` has stopped working.",
)
_CLOSINGS: Final = (
    "Please repair it without changing the public interface.",
    "What worked before should go on working.",
    "Similar inputs are affected too, so special cases for these ones are no repair.",
)


def write_issue(
    package: str,
    bugs: Iterable[Iterable[Behaviour]],
    forbidden: frozenset[str],
    rng: random.Random,
) -> str:
    """The text, or "" if of one of the bugs nothing can be said without a forbidden name.

    Args:
        package: its name.
        bugs: for each bug what it changes; short examples are preferred.
        forbidden: names that must not be in the text as words.
        rng: chooses among phrases.
    """
    words = _Words(forbidden)
    told = [_list_examples(behaviours, words) for behaviours in bugs]
    if not all(told):
        return ""
    each = -(-_MOST_EXAMPLES // len(told))
    chosen = {line: file for examples in told for line, file in examples[:each]}
    areas = [area for area in map(_name_module_of_file, chosen.values()) if words.allow(area)]
    area = areas[0] if areas else package
    openings = [text for text in _OPENINGS if words.allow(text.format(area=area))]
    closings = [text for text in _CLOSINGS if words.allow(text)]
    if not openings or not closings:
        return ""
    opening = rng.choice(openings).format(area=area)
    return "\n".join([opening, "", *(f"- {line}" for line in chosen), "", rng.choice(closings)])


class _Words:
    """Case counts for names of one or two letters only: "A call" is no variable `a`."""

    def __init__(self, forbidden: frozenset[str]) -> None:
        self._short = {name for name in forbidden if len(name) <= 2}
        self._long = {name.lower() for name in forbidden if len(name) > 2}

    def allow(self, text: str) -> bool:
        words = re.findall(r"\w+", text)
        return not (self._short.intersection(words) or self._long & {w.lower() for w in words})


def _list_examples(behaviours: Iterable[Behaviour], words: _Words) -> list[tuple[str, str]]:
    """Sentences, shortest first, each with the file that it is about."""
    found = {_tell_behaviour(behaviour, words): behaviour.right.file for behaviour in behaviours}
    return sorted(((line, file) for line, file in found.items() if line), key=lambda x: len(x[0]))


def _tell_behaviour(behaviour: Behaviour, words: _Words) -> str:
    right, wrong = behaviour.right, behaviour.wrong
    subject = _describe_call(right, words)
    for said, wanted in _list_difference_phrases(right, wrong) if subject else ():
        text = f"{subject} {said}, {wanted}." if wanted else f"{subject} {said}."
        if words.allow(text) and not _UNSTEADY.search(text) and "\n" not in text:
            return text
    return ""


def _describe_call(call: Call, words: _Words) -> str:
    """The call, with its name where that may be said; "" if its arguments cannot be."""
    if not words.allow(call.arguments):
        return ""
    cut = call.arguments[: _MOST_CHARS - 1] + "…"
    arguments = call.arguments if len(call.arguments) <= _MOST_CHARS else cut
    name = call.name.replace(".__init__", "").replace(".<locals>", "")
    parts = name.split(".")
    while parts and not (words.allow(parts[-1]) and _PLAIN.fullmatch(parts[-1])):
        parts.pop()
    shown = ".".join(parts)
    if shown == name:
        return f"`{shown}({arguments})`"
    owner = f"An operation of `{shown}`" if shown and words.allow(shown) else "A call"
    return (
        f"{owner} with the arguments `{arguments}`" if arguments else f"{owner} without arguments"
    )


def _list_difference_phrases(right: Call, wrong: Call) -> Sequence[tuple[str, str]]:
    """What happens and what should; the plainest first, then ways that tell less."""
    if "…" in right.result or "…" in wrong.result:
        return []  # what was cut off may be what differs
    if wrong.how == "raised" and right.how == "raised":
        error, wanted = (call.result.split(":")[0] for call in (wrong, right))
        return [
            (f"raises {error}", f"where {wanted} is right"),
            (f"raises {error}", "which is the wrong error"),
            ("raises the wrong kind of error", ""),
        ]
    if wrong.how == "raised":
        error = wrong.result.split(":")[0]
        known = right.how == "returned" and right.result != "None"
        is_short = len(right.result) < _MOST_CHARS
        wanted = f"but `{right.result}` is right" if known and is_short else "but it is valid"
        return [
            (f"fails with `{wrong.result}`", wanted),
            (f"fails with {error}", wanted),
            ("fails with an error", wanted),
            ("fails with an error", "but it is valid"),
        ]
    if right.how == "raised":
        error = right.result.split(":")[0]
        return [
            (f"is accepted and gives `{wrong.result}`", f"but {error} is due"),
            ("is accepted", f"but {error} is due"),
            ("is accepted", "but an error is due"),
        ]
    if wrong.how == right.how and len(wrong.result) + len(right.result) <= 2 * _MOST_CHARS:
        verb = "yields" if wrong.how == "yielded" else "gives"
        return [(f"{verb} `{wrong.result}`", f"but `{right.result}` is right")]
    return []


def _name_module_of_file(file: str) -> str:
    parts = PurePosixPath(file).with_suffix("").parts
    return ".".join(part for part in parts if part not in ("src", "__init__"))
