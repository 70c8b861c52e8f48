"""Runs pytest inside a sandbox and reports each test under a key of this run.

This file is a script, alone in the sandbox. It reads one JSON object
from standard input (see `rule.py`) and writes the report to what was standard output;
what the tests print goes to standard error. A line of the report is a MAC and a Python literal: the
MAC is over the line's number and text, so a line that is forged, repeated, left out or moved shows.

Start it as `python -s -P -S runner.py` with an environment of its own: no user site, no
sitecustomize, no .pth file, nothing of the working folder on the path before the suite's entries.
"""

from __future__ import annotations  # images have old Pythons

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType

BAD = ("failed", "error")


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


EVENTS = {
    "sys._getframe": "frames",
    "sys._current_frames": "frames",
    "sys.settrace": "frames",
    "sys.setprofile": "frames",
    "gc.get_objects": "gc",
    "gc.get_referrers": "gc",
    "gc.get_referents": "gc",
    "os.fork": "processes",
    "os.forkpty": "processes",
    "os.system": "processes",
    "os.exec": "processes",
    "os.posix_spawn": "processes",
    "subprocess.Popen": "processes",
    "ctypes.dlopen": "ctypes",
}
FRAME_ATTRIBUTES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")
LOOKERS = ("/inspect.py", "/traceback.py")
MOVES = ("os.remove", "os.rename", "os.link", "os.symlink", "os.truncate", "os.chmod")


class Guard:
    """An audit hook that reports, at once, what only a cheat does.

    That is code of the patch that looks at the frames or objects of others, starts a process or
    reads a test, and anybody who changes a test. A hook cannot be taken out again, and what is
    reported cannot be taken back.
    """

    def __init__(
        self,
        watched: dict[str, list[str]],
        sealed: list[str],
        write: Callable[[dict[str, object]], None],
    ) -> None:
        """Make it.

        Args:
            watched: the files of the patch, each with what it may do because it did so before.
            sealed: the test files.
            write: writes a line of the report.
        """
        self._watched, self._tests, self._write = watched, frozenset(sealed), write
        self._library = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120
        self._frame = sys._getframe  # pyright: ignore[reportPrivateUsage]  # documented
        self._busy = False

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        """The hook."""
        if self._busy:
            return
        self._busy = True
        try:
            file = self._check(event, args)
            if file:
                self._write({"event": "tampered", "id": file, "what": event})
        finally:
            self._busy = False

    def _check(self, event: str, args: tuple[object, ...]) -> str:
        """The file that cheats, or ""."""
        kind = EVENTS.get(event, "")
        if event == "object.__getattr__" and args[1] in FRAME_ATTRIBUTES:
            kind = "frames"
        if kind:
            file = self._asker(kind)
            return file if file and kind not in self._watched.get(file, ()) else ""
        if event == "open":
            path, flags = _path(args[0]), args[2]
            if path in self._tests and isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
                return path
            secret = path in self._tests or path.startswith("/proc/")
            return self._asker("files") if secret else ""
        if event in MOVES:
            return next((path for path in map(_path, args) if path in self._tests), "")
        return ""

    def _asker(self, kind: str) -> str:
        """The file of the patch that stands behind an event, or ""."""
        frame: FrameType | None = self._frame(3)
        direct = True
        while frame is not None:
            file = frame.f_code.co_filename
            library = file.startswith(("<frozen", self._library)) and "site-packages" not in file
            if not library:
                return file if file in self._watched or file.startswith("<") else ""
            if kind == "frames" and direct and not file.endswith(LOOKERS):
                return ""  # namedtuple, logging and others look at frames for good reasons
            frame, direct = frame.f_back, False
        return ""


def _path(value: object) -> str:
    name = os.fsdecode(value) if isinstance(value, (str, bytes)) else ""
    return os.path.realpath(name) if name else ""


class Outcomes:
    """Gathers the phases of each test and reports it once, when its last phase is over."""

    def __init__(self, write: Callable[[dict[str, object]], None]) -> None:
        self._write = write
        self._worst: dict[str, str] = {}
        self.num_tests = 0

    def add(self, test: str, outcome: str) -> None:
        """One phase of a test; a failure is never forgotten, a skip only for a failure."""
        before = self._worst.get(test, "passed")
        if before not in BAD and outcome != "passed":
            self._worst[test] = outcome
        else:
            self._worst.setdefault(test, before)

    def close(self, test: str) -> None:
        """The test is over."""
        self.num_tests += 1
        outcome = self._worst.pop(test, "error")
        self._write({"event": "test", "id": test, "outcome": outcome})


def run_pytest(arguments: Sequence[str], write: Callable[[dict[str, object]], None]) -> int:
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

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            outcomes.close(nodeid)

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                said = str(report.longrepr).strip().splitlines() or [""]
                write({"event": "collect", "id": report.nodeid, "error": said[-1][:300]})

    status = int(pytest.main([*arguments], plugins=[Reporter()]))
    return finish(outcomes, status, write)


def finish(outcomes: Outcomes, status: int, write: Callable[[dict[str, object]], None]) -> int:
    """The last line: a report without it is of a run that did not come to its end."""
    write({"event": "end", "tests": outcomes.num_tests, "status": status})
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
    if hasattr(sys, "addaudithook"):
        sys.addaudithook(Guard(request["watched"], request["sealed"], write))
    # What runs now finds nothing of this script by its name.
    sys.modules["__main__"] = type(sys)("__main__")
    return run_pytest(request["arguments"], write)


if __name__ == "__main__":
    sys.exit(main())
