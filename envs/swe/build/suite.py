"""Runs the test suite of a package on this machine, as plain child processes with time limits.

The builder runs only code that its user names, as `pip install` would. Nothing of a policy ever
runs here: grading has sandboxes.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from agentrl.envs.swe.report import (
    PYTHON_FLAGS,
    RUNNER,
    BadReport,
    SuiteReport,
    SuiteRequest,
    read_report,
)
from agentrl.errors import RunError

_FORKS: Final = Path(__file__).parent / "forks.py"
_OPTIONS: Final = (
    *("-o", "addopts=", "-p", "no:cacheprovider", "-q", "--tb=short"),
    # They collect garbage at the end of a run, which takes longer than most suites.
    *("-p", "no:unraisableexception", "-p", "no:threadexception"),
)
_LINE_CHARS: Final = 300
_WALL: Final = 20
"""So many times its processor time may a run take; on a busy machine it needs that."""
_IDLE_S: Final = 15.0
"""A run that uses no processor time for so long waits for something that does not come."""
_WATCHED: Final = 10
"""Being watched makes a run so many times slower, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """How to run the tests of an unpacked package."""

    root: Path
    paths: tuple[str, ...]
    """Folders for the import path, relative to the root."""
    tools: Path
    """Where pytest and what else the tests import is installed."""
    arguments: tuple[str, ...]
    """Test files and folders, and further options of pytest."""
    cpu_s: float = 60.0
    """Processor time of one run, at most."""

    def only(self, tests: Sequence[str]) -> "Suite":
        """The same suite with these tests alone."""
        return replace(self, arguments=tuple(tests))

    def request(self, watch: Sequence[str]) -> SuiteRequest:
        """For the runner; `watch` are the arguments of the watching plugin, if any."""
        return SuiteRequest(
            root=str(self.root),
            paths=[str(self.tools), *(str(self.root / path) for path in self.paths)],
            arguments=[*_OPTIONS, *self.arguments],
            watch=watch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """One run: a report, or why there is none."""

    report: SuiteReport | None
    problem: str
    seconds: float
    """Of processor time."""


class SuiteRunner:
    """Runs suites one after the other; a context manager."""

    def __init__(self, tools: Path, *, hash_seed: int = 0) -> None:
        """Start the process that the runs are forks of.

        Args:
            tools: pytest and what else the tests import.
            hash_seed: orders sets; forks have the same order, and other processes with the same
                seed mostly.
        """
        self._process = subprocess.Popen(
            [sys.executable, *PYTHON_FLAGS, str(_FORKS), str(RUNNER), str(tools)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # `select` knows nothing of what a buffer has read ahead
            # Sets have the same order in each run, so that a failure is one in each run.
            env={
                "PATH": os.environ["PATH"],
                "LANG": "C.UTF-8",
                "PYTHONHASHSEED": str(hash_seed),
            },
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def run(self, suite: Suite, *, watch: Sequence[str] = ()) -> SuiteRun:
        """Run a suite once in a fresh fork; whatever it leaves running is killed."""
        key = secrets.token_bytes(32)
        cpu_s = suite.cpu_s * (_WATCHED if watch else 1)
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder) / name for name in ("stdin", "stdout", "stderr")}
            for path in files.values():
                path.touch()
            files["stdin"].write_bytes(suite.request(watch).to_bytes(key))
            job = {**{name: str(path) for name, path in files.items()}, "cpu_s": str(int(cpu_s))}
            seconds, in_time = self._run_suite_job(job, cpu_s * _WALL)
            if not in_time:
                problem = f"it takes longer than {cpu_s:.0f} s"
                return SuiteRun(report=None, problem=problem, seconds=seconds)
            try:
                report = read_report(files["stdout"].read_bytes(), key)
                return SuiteRun(report=report, problem="", seconds=seconds)
            except BadReport as error:
                said = files["stderr"].read_text(errors="replace").strip().splitlines()
                problem = f"{error}: {''.join(said[-1:])[:_LINE_CHARS]}"
                return SuiteRun(report=None, problem=problem, seconds=seconds)

    def _run_suite_job(self, job: dict[str, str], timeout_s: float) -> tuple[float, bool]:
        """Processor time in seconds, and whether it ended by itself."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RunError("the process for the suites has no pipes")
        stdin.write(json.dumps(job).encode() + b"\n")
        stdin.flush()
        child = int(stdout.readline() or b"0")
        if not child:
            raise RunError("the process for the suites has died; is pytest installed whole?")
        in_time = _wait_for_suite(stdout, child, timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        return float(stdout.readline()), in_time


def _wait_for_suite(stdout: IO[bytes], child: int, timeout_s: float) -> bool:
    """Wait for a run's end; False if it takes too long, or does nothing any more."""
    end, before = time.monotonic() + timeout_s, ""
    while time.monotonic() < end:
        if select.select([stdout], [], [], min(_IDLE_S, max(0.0, end - time.monotonic())))[0]:
            return True
        used = _read_processor_time(child)
        if used == before:
            return False
        before = used
    return False


def _read_processor_time(process: int) -> str:
    """Of a process and its ended children, in ticks; "" if it has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return " ".join(stat.rpartition(")")[2].split()[11:15])
