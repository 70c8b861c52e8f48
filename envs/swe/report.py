"""The report of a test run: asked for with a key of its own, and believed only if it is whole.

`SuiteRequest` goes to the standard input of `runner.py` in the sandbox, `read_report` takes what
comes out.
"""

import ast
import hashlib
import hmac
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, get_args

Outcome: TypeAlias = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
RUNNER: Final = Path(__file__).parent / "runner.py"
PYTHON_FLAGS: Final = ("-s", "-P", "-S")
"""Of the interpreter that runs it."""
RUNNER_PLACE: Final = "/tmp/agentrl_runner.py"
"""In the sandbox."""


class BadReport(Exception):
    """A report that proves nothing; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRequest:
    """What the runner is to run."""

    root: str
    """The working folder, in the sandbox."""
    paths: Sequence[str]
    """Import path behind the standard library's."""
    arguments: Sequence[str] = ()
    watch: Sequence[str] = ()
    """The builder's watching plugin and its arguments; see `build/watcher.py`."""

    def to_bytes(self, key: bytes) -> bytes:
        """One line for the runner's standard input."""
        return json.dumps({**asdict(self), "key": key.hex()}).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saw:
    """The comparison for equality at which a test failed; see `rewriting.py`."""

    site: str
    count: int
    """It was the so-manieth of its test."""
    sides: tuple[str, str]
    """What it compared, as `runner.literal` writes it; unknown what was raised instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteReport:
    """What became of each test; `broken` are the files that could not be collected."""

    outcomes: Mapping[str, Outcome]
    saws: Mapping[str, Saw]
    """Of tests that failed by one."""
    broken: Mapping[str, str]
    status: int
    """The runner's own exit status."""
    notes: tuple[Mapping[str, object], ...] = ()
    """Events of the builder's watching plugin."""

    def passed(self) -> frozenset[str]:
        """The tests that passed."""
        return frozenset(test for test, outcome in self.outcomes.items() if outcome == "passed")


def read_report(data: bytes, key: bytes) -> SuiteReport:
    """Check every line of a report.

    Raises:
        BadReport: A line is not the runner's, is out of its place or says a test twice; or the end
            is missing.
    """
    outcomes: dict[str, Outcome] = {}
    saws: dict[str, Saw] = {}
    broken: dict[str, str] = {}
    notes: list[Mapping[str, object]] = []
    lines = data.split(b"\n")
    if lines.pop():
        raise BadReport("the report ends in the middle of a line")
    for number, line in enumerate(lines):
        event = _parse_signed_report_line(line, number, key)
        kind, test = event.get("event"), str(event.get("id"))
        if kind == "end":
            status = event.get("status")
            ends = number == len(lines) - 1 and event.get("tests") == len(outcomes)
            if not isinstance(status, int) or not ends:
                raise BadReport("the report goes on after its end")
            return SuiteReport(
                outcomes=outcomes, saws=saws, broken=broken, status=status, notes=tuple(notes)
            )
        if kind == "begin":
            continue
        if kind == "collect":
            broken[test] = str(event.get("error"))
        elif kind != "test":
            notes.append(event)
        elif test in outcomes:
            raise BadReport(f"the test {test} is reported twice")
        else:
            outcomes[test] = _read_outcome_of_event(event)
            if event.get("saw"):
                saws[test] = saw_of(event["saw"])
    raise BadReport("the run did not come to its end")


def _parse_signed_report_line(line: bytes, number: int, key: bytes) -> dict[str, object]:
    mac, _, text = line.partition(b" ")
    wanted = hashlib.blake2b(b"%d:%s" % (number, text), key=key, digest_size=16).hexdigest()
    if not hmac.compare_digest(mac, wanted.encode()):
        raise BadReport(f"line {number + 1} of the report is not the runner's")
    try:
        event: object = ast.literal_eval(text.decode())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        event = None
    if not isinstance(event, dict):  # somebody else has the key
        raise BadReport(f"line {number + 1} of the report is no event")
    return cast("dict[str, object]", event)


def saw_of(told: object) -> Saw:
    """What `runner.Comparisons` told.

    Raises:
        BadReport: It did not tell this.
    """
    match told:
        case [str(site), int(count), str(left), str(right)]:
            return Saw(site=site, count=count, sides=(left, right))
        case _:
            raise BadReport(f"the report tells of the comparison {told!r:.80}")


def _read_outcome_of_event(event: Mapping[str, object]) -> Outcome:
    outcome = event.get("outcome")
    if outcome not in get_args(Outcome):
        raise BadReport(f"the test {event.get('id')} has the unknown outcome {outcome}")
    return cast("Outcome", outcome)


def file_of(test: str) -> str:
    """The file of a test's id."""
    return test.partition("::")[0]


def function_of(test: str) -> str:
    """A test's id without its parameters."""
    return test.partition("[")[0]


def by_file(outcomes: Mapping[str, Outcome]) -> dict[str, list[tuple[str, Outcome]]]:
    """The functions of each test file in their order, each with an outcome."""
    found: dict[str, list[tuple[str, Outcome]]] = defaultdict(list)
    for test, outcome in outcomes.items():
        found[file_of(test)].append((function_of(test), outcome))
    return found
