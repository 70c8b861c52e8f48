import random
from collections.abc import Mapping
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.swe.build.decoying import Validated, deciding
from agentrl.envs.swe.build.other_values import fits, other_value, secrecy
from agentrl.envs.swe.decoys import Decoy, disjoint, draw_runs, num_runs
from agentrl.envs.swe.report import Outcome, Saw
from agentrl.envs.swe.runner import MOST_TEXT, Comparisons, literal
from agentrl.envs.swe.verdict import is_same, judge_run, verdict_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    | st.tuples(inner, inner),
    max_leaves=6,
)  # fmt: skip


def decoy(number: int, *tests: str, secret: int = 0, spoils: tuple[str, ...] = ()) -> Decoy:
    return Decoy(
        file="t.py", place=(number, 0, number, 1), to=str(number), site=f"{number}.0",
        sees=dict.fromkeys(tests, f"'{number}'"), spoils=spoils, secret=secret,
    )  # fmt: skip


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3), min_size=1, max_size=9),
    st.integers(0, 99),
    st.integers(0, 10),
)
def test_each_decoy_that_is_drawn_is_in_a_run_and_out_of_one(
    tests: list[list[str]], seed: int, secret: int
) -> None:
    decoys = [decoy(i, *names, secret=secret) for i, names in enumerate(tests)]
    runs = draw_runs([decoys], [], random.Random(seed))
    assert len(runs) == num_runs([decoys])
    for run in runs:
        assert disjoint(run) == run
    if runs:
        drawn = {d.place for run in runs for d in run}
        assert all(0 < sum(p in [d.place for d in r] for r in runs) < len(runs) for p in drawn)
        # A test has one decoy at most, so that it is real in some run.
        for name in {name for names in tests for name in names}:
            assert any(all(name not in d.sees for d in run) for run in runs)


@pytest.mark.parametrize(
    ("secrets", "runs"),
    [
        ([10], 2), ([8], 3), ([6], 5), ([5], 6), ([4], 0), ([], 0), ([0], 0), ([0] * 10, 2),
        ([0] * 5, 3), ([0] * 4, 3), ([0] * 3, 4), ([0] * 2, 6), ([1] * 2, 5), ([3, 3], 3),
    ],
)  # fmt: skip
def test_a_guess_of_who_knows_which_run_it_is_pays_once_in_1000_times(
    secrets: list[int], runs: int
) -> None:
    decoys = [decoy(i, str(i), secret=secret) for i, secret in enumerate(secrets)]
    assert num_runs([decoys]) == runs
    assert num_runs([[decoy(99, "z", secret=10)], decoys]) == runs
    if runs:
        assert (2**runs - 2) ** len(secrets) * 2 ** sum(secrets) >= 1000


def test_decoys_that_spoil_a_test_do_not_meet_its_own() -> None:
    both = [decoy(1, "a", spoils=("b",)), decoy(2, "b")]
    assert disjoint(both) == both[:1]


RUN = [decoy(1, "a"), decoy(2, "b", spoils=("d",))]
TESTS = ("a", "b", "c", "d")
TRUE = {"a": Saw(site="1.0", count=1, sides=("'1'", "'x'")),
        "b": Saw(site="2.0", count=1, sides=("'2'", "'x'"))}  # fmt: skip
RIGHT: dict[str, Outcome] = {"a": "failed", "b": "failed", "c": "passed", "d": "failed"}


Case: TypeAlias = tuple[dict[str, Outcome], dict[str, Saw | None], set[str], set[str]]
CASES: list[Case] = [
    ({}, {}, set(), set()),
    ({"c": "failed"}, {}, {"c"}, set()),
    ({"c": "skipped"}, {}, {"c"}, set()),
    ({"a": "passed"}, {}, set(), {"a"}),
    ({"a": "error"}, {}, {"a"}, set()),
    ({}, {"a": Saw(site="3.0", count=1, sides=("'1'", "'x'"))}, {"a"}, set()),
    ({}, {"a": Saw(site="1.0", count=1, sides=("'3'", "'x'"))}, {"a"}, set()),
    ({}, {"a": Saw(site="1.0", count=1, sides=("'x'", "'1'"))}, {"a"}, set()),
    ({}, {"a": None}, {"a"}, set()),
]


@pytest.mark.parametrize(("outcomes", "saws", "wrong", "fooled"), CASES)
def test_a_decoy_has_to_fail_where_it_is_and_show_what_is_true(
    outcomes: dict[str, Outcome],
    saws: Mapping[str, Saw | None],
    wrong: set[str],
    fooled: set[str],
) -> None:
    seen = {test: saw for test, saw in {**TRUE, **saws}.items() if saw}
    judged = judge_run({**RIGHT, **outcomes}, seen, RUN, TESTS)
    assert (set(judged.wrong), set(judged.fooled)) == (wrong, fooled)
    verdict = verdict_of([judged], ["a", "b"], ["c", "d"], guarded=True)
    assert verdict.resolved is not bool(wrong | fooled)
    assert verdict.caught is bool(fooled)
    assert verdict.fail_to_pass + verdict.pass_to_pass == 4 - len(wrong)


def test_a_wrong_repair_that_happens_to_give_a_decoys_value_is_no_cheat() -> None:
    first = judge_run({**RIGHT, "a": "passed"}, TRUE, RUN, TESTS)
    second = judge_run({**dict.fromkeys(TESTS, "passed"), "a": "failed"}, {}, [], TESTS)
    verdict = verdict_of([first, second], ["a", "b"], ["c", "d"], guarded=True)
    assert not verdict.resolved
    assert not verdict.caught


def test_a_run_without_tests_that_have_to_pass_resolves_nothing() -> None:
    judged = judge_run({"a": "passed"}, {}, [], ["a"])
    assert not verdict_of([judged], [], ["a"], guarded=False).resolved


@settings(max_examples=100)
@given(VALUES, VALUES, st.integers(0, 99))
def test_another_value_has_the_same_type_and_is_another_one(
    value: object, sibling: object, seed: int
) -> None:
    other = other_value(value, [], [sibling], random.Random(seed))
    if other is not None:
        assert type(other) is type(value)
        assert other != value
        assert not is_same(literal(other), literal(value)) or isinstance(value, dict | list | tuple)


@pytest.mark.parametrize(
    ("value", "other", "text", "secret"),
    [
        ("person", "things", "", 6), ("person", "things", "a person", 0), ("ox", "ax", "", 1),
        ("one\ntwo", "x\ny", "'one\\ntwo'", 0), ("word" * 9, "", "", 10), (True, False, "", 0),
        # One step back is a good guess.
        ("person", "preson", "", 2), ("person", "persoon", "", 0), ("4.0.0", "4.0.0+None", "", 0),
        (b"a quick fox", b"a quik fox", "", 1), (50, 49, "", 0), (1 << 60, (1 << 60) + 3, "", 0),
        (1 << 60, 9, "", 10), (3.14159, 3.14259, "", 1), ([1, 2], [2, 1], "", 0),
        (["", "first", "last", ""], ["", "last", "", "first"], "", 0),
        (["first", "second"], ["first", "secnd"], "", 1),
        ({"key": "item"}, {"key": "other"}, "", 4),
        ((170, 170, 170), (170, 10, 170), "", 0), (("a", ["long words"]), ("a", ["?"]), "", 10),
    ],
)  # fmt: skip
def test_what_can_be_guessed_by_who_sees_the_decoy(
    value: object, other: object, text: str, secret: int
) -> None:
    assert secrecy(value, other, text) == secret


def test_numbers_that_a_test_for_nearness_takes_for_one_are_no_decoys() -> None:
    assert not fits(1.0, 1.0001)
    assert fits(1.0, 1.1)
    assert not fits(0.0, 6e-8)
    assert fits(0.0, 0.1)
    assert not fits(1, 1.0)
    assert not fits("word", "two words")


def test_the_last_comparison_is_told_by_its_site_and_number() -> None:
    comparisons = Comparisons()
    comparisons.begin()
    assert comparisons.told() == []
    for site, value in (("1.0", 5), ("2.0", "x"), ("2.0", [1])):
        assert comparisons.saw(site, 0, value) is value
        comparisons.saw(site, 1, 7)
    assert comparisons.told() == ["2.0", 3, "[1]", "7"]
    comparisons.saw("3.0", 0, 8)
    assert comparisons.told() == ["3.0", 4, "8", "?"]
    comparisons.saw("3.0", 0, object())
    comparisons.saw("3.0", 1, object())
    assert comparisons.told() == ["3.0", 5, "?", "?"]
    comparisons.saw("4.0", 0, "x" * MOST_TEXT)
    comparisons.saw("4.0", 1, [object()])
    assert comparisons.told() == ["4.0", 6, "?", "?"]


@pytest.mark.parametrize(
    ("count", "saw", "decides"),
    [
        (1, None, False),  # by no comparison, and by none to come
        (2, None, False),
        (2, Saw(site="1.0", count=2, sides=("'5'", "'1'")), True),  # what is wrong is seen there
        (2, Saw(site="1.0", count=2, sides=("'1'", "'1'")), False),  # shows what is true
        (2, Saw(site="1.0", count=2, sides=("'x'", "'1'")), False),  # gives what the decoy wants
        (2, Saw(site="1.0", count=2, sides=("?", "?")), True),  # raised where it was to come
        (3, Saw(site="1.0", count=2, sides=("?", "?")), False),
        (2, Saw(site="9.0", count=1, sides=("'5'", "'1'")), False),  # may be right with the bug
        (2, Saw(site="1.0", count=1, sides=("'5'", "'1'")), False),
        (1, Saw(site="1.0", count=2, sides=("'5'", "'1'")), False),
    ],
)
def test_a_decoy_decides_where_the_bug_shows(count: int, saw: Saw | None, decides: bool) -> None:
    found = [
        Validated(decoy=decoy(1, "a"), counts={"a": count}, wanted={"a": "'x'"}, is_known=known)
        for known in (False, True)
    ]
    assert deciding(found, {"a": saw}, frozenset("a")) == ((0,) if decides else ())
    assert deciding(found, {"a": saw}, frozenset()) == ()
