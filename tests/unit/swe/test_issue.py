import random
import re

import pytest

from agentrl.envs.swe.build.behaviour import Behaviour, Call, differences
from agentrl.envs.swe.build.issue import write_issue


def call(
    how: str = "returned", result: str = "1", *, name: str = "Box.get", arguments: str = "'a', 2"
) -> Call:
    return Call(file="src/pkg/box.py", name=name, arguments=arguments, how=how, result=result)


def issue(right: Call, wrong: Call, forbidden: set[str]) -> str:
    behaviours = [Behaviour(right=right, wrong=wrong)]
    return write_issue("pkg", [behaviours], frozenset(forbidden), random.Random(0))


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (call(), call(result="2"), "`Box.get('a', 2)` gives `2`, but `1` is right."),
        (call(), call("raised", "KeyError: x"), "fails with `KeyError: x`, but `1` is right."),
        (call("raised", "KeyError: x"), call(), "is accepted and gives `1`, but KeyError is due."),
        (call("raised", "KeyError: x"), call("raised", "OSError: "), "where KeyError is right."),
        (call("yielded", "1, 2"), call("yielded", "1"), "yields `1`, but `1, 2` is right."),
    ],
)
def test_each_way_to_differ_has_its_words(right: Call, wrong: Call, said: str) -> None:
    text = issue(right, wrong, set())
    assert said in text
    assert "pkg.box" in text


@pytest.mark.parametrize(
    "forbidden",
    [{"get"}, {"get", "Box"}, {"get", "KeyError"}, {"get", "box"}, {"get", "b"}, {"Get"}],
)
def test_no_forbidden_word_is_said(forbidden: set[str]) -> None:
    text = issue(call("raised", "KeyError: get"), call(), forbidden)
    assert text
    long = {word.lower() for word in forbidden if len(word) > 2}
    words = set(re.findall(r"\w+", text))
    assert not long & {word.lower() for word in words}
    assert not words & {word for word in forbidden if len(word) <= 2}


def test_what_cannot_be_said_is_not_written() -> None:
    assert issue(call(result="<Box at 0x7f0011223344>"), call(), set()) == ""
    assert issue(call(result="get"), call(), {"get"}) == ""
    assert issue(call(how="unknown"), call(), set()) == ""


def test_a_difference_counts_only_where_the_calls_before_are_the_same() -> None:
    same, other = call(), call(result="2")
    ((found),) = differences({"t": (same, same)}, {"t": (same, other)})
    assert found == Behaviour(right=same, wrong=other)
    strayed = call(arguments="3")
    assert not list(differences({"t": (same, same)}, {"t": (strayed, other)}))
    assert not list(differences({"t": (same,)}, {}))


def test_each_bug_is_told_of() -> None:
    one = Behaviour(right=call(), wrong=call(result="2"))
    other = Behaviour(right=call(name="Lid.shut", arguments=""), wrong=call(result="'longer'"))
    text = write_issue("pkg", [[one], [other]], frozenset(), random.Random(0))
    assert "`Box.get('a', 2)` gives `2`" in text
    assert "`Lid.shut()` gives `'longer'`" in text
    assert write_issue("pkg", [[one], []], frozenset(), random.Random(0)) == ""
    hidden = write_issue("pkg", [[other]], frozenset({"Lid", "shut"}), random.Random(0))
    assert "A call without arguments gives" in hidden
