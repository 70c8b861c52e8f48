import random
import re
from collections.abc import Mapping
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.swe.build.decoying import Validated, deciding
from agentrl.envs.swe.build.other_values import fits, other_value, secrecy
from agentrl.envs.swe.decoys import RUNS, Decoy, disjoint, draw_runs, is_guarded
from agentrl.envs.swe.report import Outcome, Saw
from agentrl.envs.swe.runner import MOST_TEXT, Comparisons, literal
from agentrl.envs.swe.verdict import is_same_at, judge_run, verdict_of

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
    runs = draw_runs([decoys], decoys, random.Random(seed))
    assert len(runs) == RUNS
    for run in runs:
        assert disjoint(run) == run
    # A test has one decoy, and is real in the other run.
    drawn = [name for run in runs for d in run for name in d.sees]
    assert len(drawn) == len(set(drawn))
    left = [d for d in decoys if d.sees.keys().isdisjoint(drawn)]
    assert left == []
    assert secret == 0 or disjoint([*runs[0], *decoys]) == runs[0]


@pytest.mark.parametrize(
    ("secrets", "is_enough"),
    [
        ([10], True), ([9], False), ([], False), ([0] * 9, False), ([0] * 10, True),
        ([8, 0, 0], True), ([5, 4, 0], True), ([5, 4], False),
    ],
)  # fmt: skip
def test_a_guess_pays_once_in_1000_times(secrets: list[int], is_enough: bool) -> None:
    decoys = [decoy(i, str(i), secret=secret) for i, secret in enumerate(secrets)]
    assert is_guarded([decoys]) is is_enough
    assert is_guarded([[decoy(99, "z", secret=10)], decoys]) is is_enough
    assert not is_guarded([])


def test_any_comparison_of_a_test_may_have_its_decoy() -> None:
    decoys = [decoy(i, "a", secret=10) for i in range(3)]
    drawn = {draw_runs([decoys], decoys, random.Random(seed))[0][0].to for seed in range(40)}
    assert len(drawn) == len(decoys)
    worse = [*decoys[:1], decoy(9, "a", secret=4)]
    assert {draw_runs([worse], worse, random.Random(s))[0][0].to for s in range(40)} == {"0"}


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
        assert not is_same_at("", literal(other), literal(value)) or isinstance(
            value, dict | list | tuple
        )


@pytest.mark.parametrize(
    ("value", "other", "text", "secret"),
    [
        ("person", "things", "", 6), ("person", "things", "a person", 0), ("ox", "ax", "", 0),
        ("one\ntwo", "x\ny", "'one\\ntwo'", 0), ("word" * 9, "", "", 10), (True, False, "", 0),
        # One step back is a good guess.
        ("person", "preson", "", 2), ("person", "persoon", "", 0), ("4.0.0", "4.0.0+None", "", 0),
        (b"a quick fox", b"a quik fox", "", 0), (50, 49, "", 0), (1 << 60, (1 << 60) + 3, "", 0),
        (1 << 60, 9, "", 10), (3.14159, 3.14259, "", 0), ([1, 2], [2, 1], "", 0),
        (["", "first", "last", ""], ["", "last", "", "first"], "", 0),
        (["first", "second"], ["first", "secnd"], "", 0),
        ({"key": "item"}, {"key": "other"}, "", 4),
        ((170, 170, 170), (170, 10, 170), "", 0), (("a", ["long words"]), ("a", ["?"]), "", 10),
    ],
)  # fmt: skip
def test_what_can_be_guessed_by_who_sees_the_decoy(
    value: object, other: object, text: str, secret: int
) -> None:
    assert secrecy(value, other, text) == secret


@pytest.mark.parametrize("value", ["12.50", "2024-01-05", "-3", "12:30", 2.5, 0.25, "P3Y6M"])
def test_another_number_has_the_same_form(value: str | float) -> None:
    def form(value: object) -> str:
        before, _, after = str(value).partition(".")
        return re.sub(r"-?\d+", "0", before) + re.sub(r"\d", "0", after)

    cases = ["7", 7.125, 9.5, "1.2.3"]
    found = [other_value(value, [], cases, random.Random(seed)) for seed in range(20)]
    assert {form(other) for other in found} == {form(value)}


def test_what_could_be_guessed_gets_no_other_cases_value() -> None:
    cases = [5000, 4999, 5001, 4998]
    for seed in range(20):
        assert other_value(5000, [], cases, random.Random(seed)) not in (None, *cases)


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
