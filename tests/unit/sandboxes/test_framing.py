import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes import interpreter, shell
from agentrl.sandboxes.framing import Marks, Output

MARKS = Marks(
    begin=re.compile(rb"/b: [^\n]*\n"),
    end=re.compile(rb"/e:(\d+): [^\n]*\n(?P<before>.*?)/e:: [^\n]*\n", re.DOTALL),
    stopped=b"`s'\n",
)
BEGIN, STOPPED = b"bash: /b: none\n", b"bash: error `s'\n"
END = b"bash: /e:3: none\nbash: /e:: none\n"


@given(st.binary(max_size=600), st.integers(1, 700))
def test_what_stands_between_the_marks(said: bytes, step: int) -> None:
    output = Output(MARKS, 1 << 20)
    stream = b"late noise\n" + BEGIN + said + END + STOPPED + b"later noise"
    for at in range(0, len(stream), step):
        output.feed(stream[at : at + step])
    assert (output.begun, output.code, output.seen().data()) == (True, 3, said)


@pytest.mark.parametrize(
    ("stream", "begun", "seen"),
    [
        (b"why\n" + STOPPED, False, b"why\n"),
        (b"bash: /0123456789abcdef:130: none\nwhy\n" + END, False, b"why\n"),
        (b"noise" + BEGIN + b"said\n" + STOPPED, True, b"said\n"),
    ],
)
async def test_a_stop_ends_the_wait(stream: bytes, begun: bool, seen: bytes) -> None:
    output = Output(MARKS, 1 << 20)
    output.feed(stream)
    assert await output.over(60)
    assert (output.begun, output.seen().data()) == (begun, seen)


def test_a_line_without_end_takes_no_more_time_than_many_lines() -> None:
    took: list[float] = []
    for line in (b"x" * 99 + b"\n", b"x" * 100):
        output = Output(shell.call("")[1], 1 << 20)
        output.begun = True
        began = time.thread_time()
        for _ in range(40):
            output.feed(line * 655)
        took.append(time.thread_time() - began)
    assert took[1] < 0.1 + 10 * took[0]


@pytest.mark.parametrize("call", [shell.call, interpreter.call])
def test_each_call_has_marks_of_its_own(call: Callable[[str], tuple[bytes, Marks]]) -> None:
    (_, first), (_, second) = call("code"), call("code")
    assert not {first.begin.pattern, first.end.pattern} & {second.begin.pattern, second.end.pattern}


@pytest.mark.parametrize(
    ("said", "seen"),
    [(b"said\n", b"said"), (b"said\n\n", b"said\n"), (b"said\n\n\n\n", b"said\n"), (b"\n", b"")],
)
def test_lines_that_interrupts_ended_are_taken_off(said: bytes, seen: bytes) -> None:
    lines, marks = shell.call("code")
    end = re.findall(rb'"/([0-9a-f]{16}):\$\?"', lines)[0]
    output = Output(marks, 1 << 20)
    output.begun = True
    output.feed(said + b"bash: /END:130.: none\nbash: /END:: none\n".replace(b"END", end))
    assert (output.code, output.seen().data()) == (130, seen)


@pytest.mark.parametrize(
    "between",
    [
        b"",
        b"bash: [2: 1 (255)] tcsetattr: Inappropriate ioctl for device\n",
        b"\nbash: /END:130.: none\n",
        b"bash: [2: 1 (255)] tcsetattr: none\n\nbash: /END:130.: none\nbash: /END:130.: none\n",
    ],
)
def test_what_bash_says_between_the_last_marks_is_no_output(between: bytes) -> None:
    lines, marks = shell.call("code")
    ends = re.findall(rb'"/([0-9a-f]{16}):\$\?"', lines)
    said = b"said\n\nbash: /END:130.: none\n" + between + b"bash: /END:: none\n"
    output = Output(marks, 1 << 20)
    output.begun = True
    output.feed(said.replace(b"END", ends[0]))
    assert (output.code, output.seen().data()) == (130, b"said\n")
