"""The report of a test run: asked for with a key of its own, and believed only if it is whole.

`Request` goes to the standard input of `runner.py` in the sandbox, `read_report` takes the output.
"""

import ast
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, get_args

Outcome: TypeAlias = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
RUNNER: Final = Path(__file__).parent / "runner.py"
PYTHON_FLAGS: Final = ("-s", "-P", "-S")
"""Of the interpreter that runs it."""
_MOST_TOLD: Final = 3


class BadReport(Exception):
    """A report that proves nothing; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the runner is to run."""

    root: str
    """The working folder, in the sandbox."""
    paths: Sequence[str]
    """Import path behind the standard library's."""
    runner: Literal["pytest", "unittest"] = "pytest"
    arguments: Sequence[str] = ()
    watched: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """The patch's files, each with the kinds of events that it may cause; see `runner.guard`."""
    sealed: Sequence[str] = ()
    """The test files: nobody may change them, and the patch's files may not read them."""
    watch: Sequence[str] = ()
    """The builder's watching plugin and its arguments; see `build/watcher.py`."""

    def to_bytes(self, key: bytes) -> bytes:
        """One line for the runner's standard input."""
        fields = {
            "key": key.hex(),
            "root": self.root,
            "paths": [*self.paths],
            "runner": self.runner,
            "arguments": [*self.arguments],
            "watched": {file: [*kinds] for file, kinds in self.watched.items()},
            "sealed": [*self.sealed],
            "watch": [*self.watch],
        }
        return json.dumps(fields).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of each test; `broken` are the files that could not be collected."""

    outcomes: Mapping[str, Outcome]
    broken: Mapping[str, str]
    status: int
    """The runner's own exit status."""
    notes: tuple[Mapping[str, object], ...] = ()
    """Events of the builder's watching plugin."""

    def passed(self) -> frozenset[str]:
        """The tests that passed."""
        return frozenset(test for test, outcome in self.outcomes.items() if outcome == "passed")


def read_report(data: bytes, key: bytes) -> Report:
    """Check every line of a report.

    Raises:
        BadReport: A line is not the runner's, is out of its place or says a test twice; or the end
            is missing.
    """
    outcomes: dict[str, Outcome] = {}
    broken: dict[str, str] = {}
    notes: list[Mapping[str, object]] = []
    lines = data.split(b"\n")
    if lines.pop():
        raise BadReport("the report ends in the middle of a line")
    for number, line in enumerate(lines):
        event = _authentic(line, number, key)
        kind, test = event.get("event"), str(event.get("id"))
        if kind == "end":
            status = event.get("status")
            ends = number == len(lines) - 1 and event.get("tests") == len(outcomes)
            if not isinstance(status, int) or not ends:
                raise BadReport("the report goes on after its end")
            return Report(outcomes=outcomes, broken=broken, status=status, notes=tuple(notes))
        if kind == "tampered":
            raise BadReport(f"{test} does what only a cheat does: {event.get('what')}")
        if kind == "begin":
            continue
        if kind == "collect":
            broken[test] = str(event.get("error"))
        elif kind != "test":
            notes.append(event)
        elif test in outcomes:
            raise BadReport(f"the test {test} is reported twice")
        else:
            outcomes[test] = _outcome(event)
    raise BadReport("the run did not come to its end")


def _authentic(line: bytes, number: int, key: bytes) -> dict[str, object]:
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


def _outcome(event: Mapping[str, object]) -> Outcome:
    outcome = event.get("outcome")
    if outcome not in get_args(Outcome):
        raise BadReport(f"the test {event.get('id')} has the unknown outcome {outcome}")
    return cast("Outcome", outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a patch is right, and why not."""

    resolved: bool
    reason: str
    fail_to_pass: int = 0
    """How many of them passed."""
    pass_to_pass: int = 0


def judge(
    outcomes: Mapping[str, Outcome], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]
) -> Verdict:
    """A patch is right if every expected test is reported as passed; what is absent has failed."""

    def wrong(tests: Sequence[str]) -> list[str]:
        return [test for test in tests if outcomes.get(test) != "passed"]

    still, broke = wrong(fail_to_pass), wrong(pass_to_pass)
    reasons = [
        f"{len(tests)} {what}: {', '.join(_told(test, outcomes) for test in tests[:_MOST_TOLD])}"
        for what, tests in (("still failing", still), ("now failing", broke))
        if tests
    ]
    if not fail_to_pass:
        reasons.append("the task names no test that has to pass")
    return Verdict(
        resolved=not reasons,
        reason="; ".join(reasons) or "every expected test passed",
        fail_to_pass=len(fail_to_pass) - len(still),
        pass_to_pass=len(pass_to_pass) - len(broke),
    )


def _told(test: str, outcomes: Mapping[str, Outcome]) -> str:
    return f"{test} ({outcomes.get(test, 'not reported')})"
