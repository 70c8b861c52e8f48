"""Runs a test suite inside a sandbox and reports each test under a key of this run.

This file is a script, alone in the sandbox: it imports nothing of agentrl. It reads one JSON object
from standard input (see `report.run_request`) and writes the report to what was standard output;
what the tests print goes to standard error. A line of the report is a MAC and a Python literal: the
MAC is over the line's number and text, so a line that is forged, repeated, left out or moved shows.

Start it as `python -s -P -S runner.py` with an environment of its own: no user site, no
sitecustomize, no .pth file, nothing of the working folder on the path before the suite's entries.
"""

from __future__ import annotations  # images have old Pythons

import builtins
import datetime
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from fractions import Fraction

BAD = ("failed", "error")
SAW = "_agentrl_saw"
AT = "_agentrl_at"
ITEMS, SEQUENCE = " items", " sequence"
"""Ends of the sites of comparisons that look at items in any order, or at items alone."""


def open_report(key: bytes) -> Callable[[dict[str, object]], None]:
    """The function that writes one line; from now on fd 1 is fd 2."""
    report = os.dup(1)
    os.dup2(2, 1)
    # Bound here, and written in C: what the tests replace in modules changes nothing.
    keyed, text_of, send, count = hashlib.blake2b(key=key, digest_size=16), ascii, os.write, 0

    def write(event: dict[str, object]) -> None:
        nonlocal count
        text = text_of(event)
        mac = keyed.copy()
        mac.update(f"{count}:{text}".encode())
        line = memoryview(f"{mac.hexdigest()} {text}\n".encode())
        while line:
            line = line[send(report, line) :]
        count += 1

    return write


class Comparisons:
    """At which comparison for equality a test failed, and what that saw; see `rewriting.py`.

    Nothing here has to be kept from the code under test: what it cannot know it cannot say.
    """

    def __init__(self) -> None:
        self._last: list[object] = []
        self._count = 0
        self.is_told = False
        """A subtest has failed; the test goes on."""

    def begin(self) -> None:
        """A test begins."""
        self._last, self._count, self.is_told = [], 0, False

    def at(self, site: str) -> Callable[[object], object]:
        """The comparison at a site begins, or what it is to compare; stands there as a builtin.

        Returns:
            What takes the result, and with it the comparison for one that held.
        """
        self._last = [site] if site else []

        def end(value: object) -> object:
            if len(self._last) == 1 or value:
                self._last = []
            return value

        return end

    def saw(self, site: str, side: int, value: object) -> object:
        """A side of the comparison at a site; stands in the tests as a builtin."""
        if site.endswith(ITEMS):
            # As the assertion does; it may be read once only.
            value = list(cast("Sequence[object]", value))
        if side == 0:
            self._last = [site]
            self._count += 1
        self._last.append(value)
        return value

    def told(self) -> list[object]:
        """Site, the so-manieth it is and both sides as text; empty if it was no comparison."""
        if not self._last:
            return []
        site, *sides = self._last
        texts: list[str] = []
        for side in sides:
            try:
                text = literal(_normalise_compared_side(str(site), side, sides))
            except Exception:  # whatever the repr of a value of the patch raises
                text = UNKNOWN
            texts.append(text if len(text) <= MOST_TEXT else UNKNOWN)
        # Where something was raised before a side was there, the comparison was to come.
        return [site, self._count + (not sides), *[*texts, UNKNOWN, UNKNOWN][:2]]


def _normalise_compared_side(site: str, side: object, sides: Sequence[object]) -> object:
    """A side of a comparison without what makes no difference there."""
    if site.endswith(SEQUENCE) and isinstance(side, Sequence):
        return list(cast("Sequence[object]", side))
    if all(isinstance(each, Counter) for each in sides):
        counts = cast("Counter[object]", side)
        return {key: count for key, count in counts.items() if count}
    return side


UNKNOWN = "?"
MOST_TEXT = 4000


def literal(value: object) -> str:
    """A value as text, the same for values of builtin and related types that are equal.

    Raises:
        Exception: What the value raises, or its text would say nothing.
    """
    if isinstance(value, (bool, int)):
        return str(int(value))
    if isinstance(value, float):
        whole = value.is_integer()
        return str(int(value)) if whole else float.__repr__(value).replace("inf", "1e999")
    if isinstance(value, str):
        return ascii(str.__str__(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ascii(bytes(cast("bytes", value)))
    if isinstance(value, (Mapping, Set, Sequence)) and not isinstance(value, range):
        return _render_container(cast("Mapping[object, object] | Set[object]", value))
    if isinstance(value, (datetime.datetime, datetime.time, datetime.timedelta)):
        return _render_time(value)
    if isinstance(value, os.PathLike):
        return f"Path({os.fspath(cast('os.PathLike[str]', value))!a})"
    if hasattr(value, "as_integer_ratio"):
        top, bottom = cast("Fraction", value).as_integer_ratio()
        return literal(top if bottom == 1 else top / bottom)
    return _render_other_value(value)


def _render_container(value: Mapping[object, object] | Set[object] | Sequence[object]) -> str:
    if isinstance(value, Mapping):
        pairs = sorted(f"{literal(key)}: {literal(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    items = [literal(item) for item in value]
    if isinstance(value, Set):
        return f"{{{', '.join(sorted(items))}}}" if items else "set()"
    if isinstance(value, tuple):
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    return f"[{', '.join(items)}]"


def _render_time(value: datetime.datetime | datetime.time | datetime.timedelta) -> str:
    """A time of any class; one with a zone as it is in UTC."""
    if isinstance(value, datetime.timedelta):
        return f"timedelta({value.days}, {value.seconds}, {value.microseconds})"
    offset, bare = value.utcoffset(), value.replace(tzinfo=None)
    kind = "datetime" if isinstance(bare, datetime.datetime) else "time"
    if not isinstance(bare, datetime.datetime):
        bare = datetime.datetime.combine(datetime.date(2000, 1, 1), bare)
    zone = "" if offset is None else ", UTC"
    return f"{kind}({datetime.datetime.isoformat(bare - (offset or datetime.timedelta()))}{zone})"


def _render_other_value(value: object) -> str:
    if isinstance(value, range):
        return f"range{(len(value), *value[:2])}"
    if isinstance(value, complex) and not value.imag:
        return literal(value.real)
    text = ascii(value)
    if " at 0x" in text or "{" in text:
        raise ValueError("it shows an address, or what has no order of its own")
    return text


def tell_by_log() -> tuple[
    Callable[..., object], Callable[..., object], Callable[..., AbstractContextManager[None]]
]:
    """What test files call under a command that is not ours; see `rewriting.py`.

    Within the last, a test or a subtest stands: if it fails, the comparison where it did goes to
    the test's log.
    """
    seen = Comparisons()

    @contextmanager
    def tell(case: object = None, *, inside: bool = False) -> Generator[None, None, None]:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0] or str(case)
        if not inside:
            seen.begin()
        try:
            yield
        except BaseException:
            if not seen.is_told:  # behind what stands on the line already
                sys.stderr.write(f"\n{SAW} {(test, seen.told())!a}\n")
            seen.is_told = True
            raise

    return seen.saw, seen.at, tell


class Outcomes:
    """Gathers the phases of each test and reports it once, when its last phase is over."""

    def __init__(self, write: Callable[[dict[str, object]], None]) -> None:
        self._write = write
        self._worst: dict[str, str] = {}
        self._saw: list[object] = []
        self.comparisons = Comparisons()
        setattr(builtins, SAW, self.comparisons.saw)
        setattr(builtins, AT, self.comparisons.at)
        self.num_tests = 0

    def add(self, test: str, outcome: str) -> None:
        """One phase of a test; a failure is never forgotten, a skip only for a failure."""
        before = self._worst.setdefault(test, "passed")
        if before not in BAD and outcome != "passed":
            # Now: a test goes on behind a subtest that failed.
            self._worst[test], self._saw = outcome, self.comparisons.told()

    def close(self, test: str) -> None:
        """The test is over."""
        self.num_tests += 1
        outcome = self._worst.pop(test, "error")
        saw = self._saw if outcome == "failed" else []
        self._write({"event": "test", "id": test, "outcome": outcome, "saw": saw})

    def finish(self, status: int) -> None:
        """The last line: a report without it is of a run that did not come to its end."""
        self._write({"event": "end", "tests": self.num_tests, "status": status})


def watch_plugins(watch: Sequence[str], write: Callable[[dict[str, object]], None]) -> list[object]:
    """The plugin of the script `watch[0]`, made with the other arguments."""
    if not watch:
        return []
    names: dict[str, Callable[..., object]] = {}
    with open(watch[0], encoding="utf-8") as file:  # noqa: PTH123  # no more imports than needed
        exec(compile(file.read(), watch[0], "exec"), names)
    return [names["Watcher"](write, *watch[1:])]


def run_pytest(
    arguments: Sequence[str],
    write: Callable[[dict[str, object]], None],
    plugins: Sequence[object] = (),
) -> int:
    """Run pytest in this process; its exit status."""
    import pytest

    outcomes = Outcomes(write)

    class Reporter:
        @pytest.hookimpl(trylast=True)
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            kind = {"passed": "passed", "failed": "failed", "skipped": "skipped"}[report.outcome]
            if hasattr(report, "wasxfail"):
                kind = "xfailed" if report.skipped else "xpassed"
            elif report.failed and report.when != "call":
                kind = "error"
            outcomes.add(report.nodeid, kind)

        def pytest_runtest_logstart(self) -> None:
            outcomes.comparisons.begin()

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            outcomes.close(nodeid)

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                said = str(report.longrepr).strip().splitlines() or [""]
                write({"event": "collect", "id": report.nodeid, "error": said[-1][:300]})

    status = int(pytest.main([*arguments], plugins=[Reporter(), *plugins]))
    outcomes.finish(status)
    return status


def main() -> int:
    """Read the request and run it."""
    request = json.loads(sys.stdin.buffer.readline())
    write = open_report(bytes.fromhex(request.pop("key")))
    os.chdir(request["root"])
    # Behind the standard library, and pytest before the package: neither can be replaced by a file.
    # Before an image's own packages: among them is the package without the patch.
    place = next((i for i, path in enumerate(sys.path) if "-packages" in path), len(sys.path))
    if place < len(sys.path):
        __import__("pytest")  # now, before the package is in reach
    write({"event": "begin"})  # from here on, what goes wrong may be the package's doing
    sys.path[place:place] = request["paths"]
    sys.argv[1:] = []
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # What runs now finds nothing of this script by its name.
    sys.modules["__main__"] = type(sys)("__main__")
    return run_pytest(request["arguments"], write, watch_plugins(request["watch"], write))


if __name__ == "__main__":
    sys.exit(main())
