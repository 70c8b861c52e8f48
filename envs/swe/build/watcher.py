"""A pytest plugin of the builder: which lines ran, and what the tests asked of the package.

Like `runner.py` this is a script that imports nothing of agentrl. In the mode `lines` it reports
the lines of the sources that ran, once, as the event "lines". In the mode `calls` it reports for
each test the event "calls": the calls from the test files straight into the package, with arguments
and results as text.
"""

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

MOST_CALLS = 400
TEXT_CHARS = 160
VARARGS, GENERATOR = 0x04, 0x20  # of `co_flags`
Write = Callable[[dict[str, object]], None]


class Watcher:
    """The plugin; `sources` and `tests` are file names, relative to the root, one per line."""

    def __init__(self, write: Write, mode: str, root: str, sources: str, tests: str) -> None:
        self._write, self._mode = write, mode
        self._sources = {os.path.join(root, name): name for name in sources.split("\n")}  # noqa: PTH118
        self._tests = {os.path.join(root, name) for name in tests.split("\n")}  # noqa: PTH118
        self._lines: dict[str, set[int]] = {name: set() for name in self._sources.values()}
        self._calls: dict[int, list[object]] = {}
        self._order: list[list[object]] = []
        self._keep: list[FrameType] = []  # so that no two frames have the same id
        self._busy = False
        if mode == "lines":
            sys.settrace(self._trace_lines)

    # Lines.

    def _trace_lines(self, frame: FrameType, event: str, arg: object) -> Any:
        name = self._sources.get(frame.f_code.co_filename)
        if name is None:
            return None
        add = self._lines[name].add

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            add(frame.f_lineno)
            return trace

        return trace

    def pytest_sessionfinish(self) -> None:
        """Report the lines."""
        sys.settrace(None)
        if self._mode == "lines":
            lines = {name: sorted(found) for name, found in self._lines.items()}
            self._write({"event": "lines", "lines": lines})

    # Calls.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Watch a test's own phase."""
        if self._mode == "calls":
            sys.settrace(self._trace_calls)
        try:
            yield
        finally:
            if self._mode == "calls":
                sys.settrace(None)

    def _trace_calls(self, frame: FrameType, event: str, arg: object) -> Any:
        caller = frame.f_back
        if self._busy or caller is None or caller.f_code.co_filename not in self._tests:
            return None
        if frame.f_code.co_filename not in self._sources or len(self._order) >= MOST_CALLS:
            return None
        frame.f_trace_lines = False
        if id(frame) not in self._calls:
            source = self._sources[frame.f_code.co_filename]
            call: list[object] = [source, frame.f_code.co_qualname, self._show_args(frame), "", ""]
            self._calls[id(frame)] = call
            self._order.append(call)
            self._keep.append(frame)
        return self._record_call_event

    def _record_call_event(self, frame: FrameType, event: str, arg: Any) -> Any:
        call = self._calls[id(frame)]
        if event == "exception":
            call[3:] = ["raised", f"{arg[0].__name__}: {self._show_value(arg[1], plain=True)}"]
            frame.f_trace_lines = True  # shows whether it goes on in this frame
        elif event == "line":
            # It was caught, or a `finally` runs: what a return of None means now is unknown.
            call[3:] = ["unknown", ""]
        elif event == "return" and (call[3] not in ("raised", "unknown") or arg is not None):
            if frame.f_code.co_flags & GENERATOR:
                before = f"{call[4]}, " if call[3] == "yielded" else ""
                call[3:] = ["yielded", (before + self._show_value(arg))[:TEXT_CHARS]]
            else:
                call[3:] = ["returned", self._show_value(arg)]
        return self._record_call_event

    def _show_args(self, frame: FrameType) -> str:
        code = frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount
        names = code.co_varnames
        parts = [
            self._show_value(frame.f_locals[n]) for n in names[:count] if n not in ("self", "cls")
        ]
        if code.co_flags & VARARGS:
            parts += [self._show_value(value) for value in frame.f_locals[names[count]]]
        return ", ".join(parts)

    def _show_value(self, value: object, *, plain: bool = False) -> str:
        self._busy = True
        try:
            text = str(value) if plain else repr(value)
        except Exception:
            text = "<?>"
        finally:
            self._busy = False
        return text if len(text) <= TEXT_CHARS else text[:TEXT_CHARS] + "…"

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Report a test's calls."""
        if self._mode == "calls":
            self._write({"event": "calls", "id": nodeid, "calls": self._order})
            self._order, self._calls, self._keep = [], {}, []
