"""An agent that special-cases the calls that an issue tells, and repairs nothing."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agentrl.envs.swe.repair import BuiltRepair, repair_of
from agentrl.types import AssistantTurn, EpisodeView
from tests.contract.sandbox.shop import call

_LINE: Final = re.compile(r"^- `(?P<call>.+?)` (?P<said>.+?)\.?$", re.MULTILINE)
_NAMELESS: Final = re.compile(
    r"^- (?:A call|An operation of `(?P<owner>[^`]+)`) with the arguments `(?P<arguments>.*?)` "
    r"(?P<said>.+?)\.?$",
    re.MULTILINE,
)
_RESULT: Final = re.compile(r"but `(.*)` is right")
_ERROR: Final = re.compile(r"but (\w+) is due|where (\w+) is right")
_SPECIAL: Final = """

import datetime as _datetime
_TOLD = {{}}
def _fail(error):
    raise error
def _tell(name, shown, result):
    _TOLD.setdefault(name, {{}})[shown] = result
{told}
def _show(function, args, kwargs):
    import inspect
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    rest = [repr(v) for v in bound.arguments.get(_rest_of(function), ())]
    named = function.__code__.co_varnames[
        : function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
    shown = [repr(bound.arguments[n]) for n in named if n not in ("self", "cls")]
    return ", ".join([*shown, *rest])
def _rest_of(function):
    import inspect
    found = inspect.signature(function).parameters.values()
    return next((p.name for p in found if p.kind == p.VAR_POSITIONAL), "")
def _special(name, function):
    import functools
    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            shown = _show(function, args, kwargs)
        except Exception:
            return function(*args, **kwargs)
        result = _TOLD.get(name, {{}}).get(shown) or _TOLD.get("", {{}}).get(shown)
        if result is None:
            return function(*args, **kwargs)
        try:
            return eval(result, {{**vars(_datetime), **globals()}})
        except NameError:
            return function(*args, **kwargs)
    return call
def _wrap(owner):
    for name, value in list(vars(owner).items()):
        plain = type(value).__name__ == "function" and value.__module__ == __name__
        if plain and not name.startswith(_OWN):
            setattr(owner, name, _special(name, value))
_OWN = ("_fail", "_tell", "_show", "_rest_of", "_special", "_wrap", "__")
import sys as _sys
for _owner in [_sys.modules[__name__], *(
    value for value in list(globals().values())
    if type(value) is type and value.__module__ == __name__
)]:
    _wrap(_owner)
"""


@dataclass(frozen=True)
class Told:
    """A call with what should come of it; the name is "" where none is said."""

    name: str
    arguments: str
    result: str


def read_told(issue: str) -> Sequence[Told]:
    """The calls of an issue whose right result or error stands in it."""
    return tuple(_find_told(issue))


def _find_told(issue: str) -> Iterator[Told]:
    for line in issue.splitlines():
        result = _RESULT.search(line)
        error = _ERROR.search(line)
        shown = result[1] if result else f"_fail({error[1] or error[2]})" if error else ""
        named, nameless = _LINE.match(line), _NAMELESS.match(line)
        if not _is_expression(shown):
            continue
        if nameless:
            yield Told("", nameless["arguments"], shown)
        elif named and "(" in named["call"]:
            name, _, arguments = named["call"].partition("(")
            yield Told(name.rpartition(".")[2], arguments.removesuffix(")"), shown)


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (ValueError, SyntaxError):
        return False
    return True


def special_cased(text: str, told: Sequence[Told]) -> str:
    """A source file with the told calls answered in front of it."""
    lines = [f"_tell({t.name!r}, {t.arguments!r}, {t.result!r})" for t in told]
    return text + _SPECIAL.format(told="\n".join(lines))


def special_cased_files(broken: Mapping[str, str], issue: str) -> Mapping[str, str]:
    """All files with bugs, special-cased: the agent is told where the bugs are."""
    told = read_told(issue)
    return {file: special_cased(text, told) for file, text in broken.items()} if told else {}


@dataclass(frozen=True)
class ToldCallsAgent:
    """Writes the special cases into the files with the bugs, then submits."""

    def act(self, view: EpisodeView) -> AssistantTurn:
        repair = repair_of(view.task)
        assert isinstance(repair, BuiltRepair)
        files = list(special_cased_files(repair.texts[0], repair.issue).items())
        played = sum(message.role == "assistant" for message in view.messages)
        if played >= len(files):
            return call("submit")
        return call("write_file", path=files[played][0], content=files[played][1])
