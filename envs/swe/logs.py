"""What the tests' own output says about them: pytest, unittest and TAP.

A log is written by the code that is judged, so it proves less than a report (`report.py`): it is
for instances whose tests run under a command that is not ours. A test that is said to have ended in
two ways is one that failed, and one that is said to have compared two things told of none.
"""

import ast
import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias, cast

from agentrl.envs.swe.report import Outcome, Saw, saw_of
from agentrl.envs.swe.runner import SAW

Parser: TypeAlias = Callable[[str], dict[str, Outcome]]
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|\r(?=\n)")
_PYTEST: Final[Mapping[str, Outcome]] = {
    "PASSED": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "xfailed",
    "XPASS": "xpassed",
    "SUBPASSED": "passed",
    "SUBPASS": "passed",
    "SUBFAILED": "failed",
    "SUBFAIL": "failed",
}
_SUMMARY: Final = re.compile(rf"({'|'.join(_PYTEST)})(?:\((.*?)\)|\[[^\]]*\](?: \(.*?\))?)? (.+)")
_VERBOSE: Final = re.compile(rf"(\S.*?::.+?) ({'|'.join(_PYTEST)})(?: \(.*\))?(?:\s+\[\s*\d+%\])?")
_UNITTEST: Final[Mapping[str, Outcome]] = {
    "ok": "passed",
    "FAIL": "failed",
    "ERROR": "error",
    "expected failure": "xfailed",
    "unexpected success": "xpassed",
}
_UNITTEST_NAME: Final = re.compile(r"(\w+) \(([\w.<>]+)\)")
_UNITTEST_END: Final = re.compile(
    r"(ok|FAIL|ERROR|expected failure|unexpected success|skipped (['\"]).*\2)$"
)
_TAP: Final = re.compile(
    r"(not )?ok\b\s*(\d+)?(?:\s*-\s*|\s+|$)(.*?)(?:\s*#\s*(skip|todo)\S*.*)?$", re.IGNORECASE
)
_TAP_OUTCOMES: Final[Mapping[str, tuple[Outcome, Outcome]]] = {
    "skip": ("skipped", "skipped"),
    "todo": ("xpassed", "xfailed"),
}
"""Of `ok` and of `not ok`."""
_BAD: Final = ("failed", "error")
_TOLD: Final = re.compile(rf"^{SAW} (.+)$", re.MULTILINE)


def parse_pytest(log: str) -> dict[str, Outcome]:
    """`-rA`'s summary lines and `-v`'s progress lines; ids keep their blanks and parameters."""
    return _merge_outcomes_by_test(_parse_pytest_outcomes(_remove_terminal_escapes(log)))


def _parse_pytest_outcomes(log: str) -> Iterator[tuple[str, Outcome]]:
    for line in log.split("\n"):
        summary = _SUMMARY.fullmatch(line.rstrip())
        verbose = _VERBOSE.fullmatch(line.rstrip())
        if summary and "::" in summary[3]:
            yield _strip_message_from_test_id(summary[3], _PYTEST[summary[1]]), _PYTEST[summary[1]]
        elif verbose:
            yield verbose[1], _PYTEST[verbose[2]]


def _strip_message_from_test_id(text: str, outcome: Outcome) -> str:
    """A summary line's id without the message that follows a failure."""
    if outcome == "passed":
        return text
    # An id may hold " - " inside of its parameters: the message begins behind the last bracket
    # that closes them.
    head, bracket, tail = text.partition("[")
    if bracket and " - " not in head:
        closed = re.match(r".*?\](?= - |$)", tail)
        return f"{head}[{closed[0]}" if closed else text
    return text.split(" - ", 1)[0]


def parse_unittest(log: str) -> dict[str, Outcome]:
    """The lines of `-v`: `name (module.Class) ... ok`, also with a docstring or output between.

    A test is named `module.Class.name`, in the way of Python before and after 3.11 alike; and by
    the first line of its docstring too.
    """
    return _merge_outcomes_by_test(_parse_unittest_outcomes(_remove_terminal_escapes(log)))


def _parse_unittest_outcomes(log: str) -> Iterator[tuple[str, Outcome]]:
    current = ""
    for line in log.split("\n"):
        named = _UNITTEST_NAME.match(line)
        current = unittest_name(named[0]) if named else current
        failed = re.match(rf"(FAIL|ERROR): ({_UNITTEST_NAME.pattern})", line)
        if failed:  # the list at the end, where failed subtests stand too
            yield unittest_name(failed[2]), _UNITTEST[failed[1]]
            current = ""
            continue
        end = _UNITTEST_END.search(line.rstrip())
        if current and end and (line.rstrip() == end[1] or " ... " in line):
            outcome: Outcome = _UNITTEST.get(end[1], "skipped")
            yield current, outcome
            said = line.rpartition(" ... ")[0]
            if said and not named:  # a docstring, by which some instances name the test
                yield said, outcome
            current = ""


def unittest_name(text: str) -> str:
    """`module.Class.name` of `name (module.Class)`; other text as it is."""
    named = _UNITTEST_NAME.fullmatch(text)
    if named is None:
        return text
    return named[2] if named[2].endswith(f".{named[1]}") else f"{named[2]}.{named[1]}"


def parse_tap(log: str) -> dict[str, Outcome]:
    """`ok 1 - name # SKIP why`; a test without a name is called by its number.

    A name that stands for two tests has failed if one of them did; a plan with more tests than
    there are lines leaves the missing ones out, and what is left out has not passed.
    """
    return _merge_outcomes_by_test(_parse_tap_outcomes(_remove_terminal_escapes(log)))


def _parse_tap_outcomes(log: str) -> Iterator[tuple[str, Outcome]]:
    number = 0
    for line in log.split("\n"):
        if line.startswith("Bail out!"):
            return
        match = _TAP.fullmatch(line.rstrip())
        if match is None:
            continue
        number = int(match[2]) if match[2] else number + 1
        name = match[3].replace("\\#", "#").strip() or str(number)
        directive = (match[4] or "").lower()
        outcomes = _TAP_OUTCOMES.get(directive, ("passed", "failed"))
        yield name, outcomes[bool(match[1])]


def read_saws(log: str) -> dict[str, Saw]:
    """What failed tests compared last, as `runner.tell_by_log` writes it.

    Raises:
        BadReport: It did not write this.
    """
    found: dict[str, list[object]] = defaultdict(list)
    for text in _TOLD.findall(log):
        with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            test, saw = cast("tuple[object, object]", ast.literal_eval(text))
            found[str(test)].append(saw)
    once = {test: told[0] for test, told in found.items() if told == told[:1] * len(told)}
    return {test: saw_of(told) for test, told in once.items() if told}


def _remove_terminal_escapes(log: str) -> str:
    return _ESCAPE.sub("", log)


def _merge_outcomes_by_test(found: Iterable[tuple[str, Outcome]]) -> dict[str, Outcome]:
    """One outcome for each test; of two different ones the worse."""
    outcomes: dict[str, Outcome] = {}
    for test, outcome in found:
        before = outcomes.get(test, outcome)
        if before == outcome or before in _BAD:
            outcomes[test] = before
        else:
            outcomes[test] = outcome if outcome in _BAD else "failed"
    return outcomes


PARSERS: Final[Mapping[str, Parser]] = {
    "pytest": parse_pytest,
    "unittest": parse_unittest,
    "tap": parse_tap,
}
