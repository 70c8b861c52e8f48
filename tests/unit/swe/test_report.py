import hashlib
import io
import os
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.swe.report import BadReport, read_report
from agentrl.envs.swe.runner import Outcomes, open_report

KEY = b"k" * 32


def made(write_all: Callable[[Callable[[dict[str, object]], None]], object]) -> bytes:
    """What the runner writes, in a child because it moves file descriptors."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(write, 1)
        os.close(read)
        write_all(open_report(KEY))
        os.write(1, b"noise of a test\n")
        os._exit(0)
    os.close(write)
    with io.open(read, "rb") as file:  # noqa: UP020
        data = file.read()
    os.waitpid(child, 0)
    return data


def three(write: Callable[[dict[str, object]], None]) -> None:
    outcomes = Outcomes(write)
    for test, phases in {"a": ["passed"] * 3, "b": ["passed", "failed", "passed"]}.items():
        for phase in phases:
            outcomes.add(test, phase)
        outcomes.close(test)
    outcomes.add("c", "skipped")
    outcomes.add("c", "passed")
    outcomes.close("c")
    outcomes.finish(1)


REPORT = made(three)
LINES = REPORT.split(b"\n")[:-1]


def test_a_whole_report_is_believed() -> None:
    report = read_report(REPORT, KEY)
    assert report.outcomes == {"a": "passed", "b": "failed", "c": "skipped"}
    assert report.passed() == {"a"}
    assert report.status == 1


@pytest.mark.parametrize(
    "lines",
    [
        [],
        LINES[:-1],
        LINES[1:],
        [LINES[0], *LINES],
        [LINES[1], LINES[0], *LINES[2:]],
        [*LINES, LINES[-1]],
        [b'0 {"event": "test", "id": "b", "outcome": "passed"}', *LINES],
        [*LINES[:2], b"2 passed", *LINES[2:]],
    ],
    ids=["empty", "cut", "beheaded", "doubled", "swapped", "two ends", "forged", "noise"],
)
def test_a_report_that_was_touched_proves_nothing(lines: list[bytes]) -> None:
    with pytest.raises(BadReport):
        read_report(b"".join(line + b"\n" for line in lines), KEY)


@settings(max_examples=100)
@given(st.integers(0, len(REPORT) - 1), st.integers(1, 255))
def test_no_byte_can_be_changed(place: int, change: int) -> None:
    data = bytearray(REPORT)
    data[place] ^= change
    with pytest.raises(BadReport):
        read_report(bytes(data), KEY)


@settings(max_examples=30)
@given(
    st.binary(max_size=40)
    | st.sampled_from([b"[" * 9999, b"1", b"{1: 2}", b"{'event': []}", b"{'event': 'end'}"])
)
def test_who_has_the_key_can_say_nothing_that_raises(text: bytes) -> None:
    """The policy's code runs beside the runner, so it may have found the key."""
    line = text.replace(b"\n", b"")
    mac = hashlib.blake2b(b"0:" + line, key=KEY, digest_size=16).hexdigest().encode()
    with pytest.raises(BadReport):
        read_report(mac + b" " + line + b"\n", KEY)


def test_another_runs_report_is_none_of_this_one() -> None:
    with pytest.raises(BadReport, match="line 1"):
        read_report(REPORT, b"l" * 32)


def test_a_test_that_is_said_twice_fails_the_run() -> None:
    def twice(write: Callable[[dict[str, object]], None]) -> None:
        outcomes = Outcomes(write)
        outcomes.close("a")
        outcomes.close("a")
        outcomes.finish(0)

    with pytest.raises(BadReport, match="twice"):
        read_report(made(twice), KEY)
