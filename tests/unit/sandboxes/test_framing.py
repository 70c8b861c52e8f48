import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes import interpreter, shell
from agentrl.sandboxes.framing import Marks, Output

MARKS = Marks(
    begin=re.compile(rb"/b: [^\n]*\n"),
    end=re.compile(rb"(?:bash: )?/e:(\d+): [^\n]*\n"),
    stopped=re.compile(rb"[^\n]*`s'\n"),
)
BEGIN, END, STOPPED = b"bash: /b: none\n", b"bash: /e:3: none\n", b"bash: error `s'\n"


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


@pytest.mark.parametrize("call", [shell.call, interpreter.call])
def test_each_call_has_marks_of_its_own(call: Callable[[str], tuple[bytes, Marks]]) -> None:
    (_, first), (_, second) = call("code"), call("code")
    assert not {first.begin.pattern, first.end.pattern} & {second.begin.pattern, second.end.pattern}
