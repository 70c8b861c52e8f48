"""What a bug changes, seen from the tests: the first call of each that ends another way."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from agentrl.envs.swe.build.suite import Suite, SuiteRunner
from agentrl.envs.swe.report import SuiteReport

WATCHER: Final = Path(__file__).parent / "watcher.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call from a test straight into the package, as text."""

    file: str
    name: str
    """The qualified name of what was called."""
    arguments: str
    how: str
    """returned, yielded, raised, unknown, or "" for a call that did not end."""
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The same call with two endings."""

    right: Call
    wrong: Call


def executed_lines(
    runner: SuiteRunner, suite: Suite, sources: Sequence[str], tests: Sequence[str]
) -> Mapping[str, frozenset[int]]:
    """The lines of each source that the suite runs."""
    report = _run_suite_watched(runner, suite, "lines", sources, tests)
    notes = [note for note in report.notes if note["event"] == "lines"] if report else []
    found = cast("dict[str, list[int]]", notes[0]["lines"]) if notes else {}
    return {name: frozenset(lines) for name, lines in found.items()}


def calls(
    runner: SuiteRunner, suite: Suite, sources: Sequence[str], tests: Sequence[str]
) -> Mapping[str, tuple[Call, ...]]:
    """What each test of a suite asks of the package."""
    report = _run_suite_watched(runner, suite, "calls", sources, tests)
    found: dict[str, tuple[Call, ...]] = {}
    for note in report.notes if report else ():
        rows = cast("list[list[str]]", note["calls"])
        names = ("file", "name", "arguments", "how", "result")
        made = (Call(**dict(zip(names, row, strict=True))) for row in rows)
        found[str(note["id"])] = tuple(made)
    return found


def differences(
    right: Mapping[str, Sequence[Call]], wrong: Mapping[str, Sequence[Call]]
) -> Iterator[Behaviour]:
    """The first difference of each test, where the calls before it are the same."""
    for test, before in right.items():
        for one, other in zip(before, wrong.get(test, ()), strict=False):
            if (one.name, one.arguments) != (other.name, other.arguments):
                break
            if (one.how, one.result) != (other.how, other.result):
                yield Behaviour(right=one, wrong=other)
                break


def _run_suite_watched(
    runner: SuiteRunner, suite: Suite, mode: str, sources: Sequence[str], tests: Sequence[str]
) -> SuiteReport | None:
    watch = [str(WATCHER), mode, str(suite.root), "\n".join(sources), "\n".join(tests)]
    return runner.run(suite, watch=watch).report
