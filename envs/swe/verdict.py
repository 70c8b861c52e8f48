"""What the runs of a patch come to: right, wrong, or caught at passing decoys."""

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from agentrl.envs.swe.decoys import Decoy
from agentrl.envs.swe.report import Outcome, Saw
from agentrl.envs.swe.runner import ITEMS

_MOST_TOLD: Final = 3
_CLOSE: Final = 1e-5
_TINY: Final = 1e-7
"""A test for nearness lets different programs give values that differ by so much: of the value,
and near zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a patch is right, and why not."""

    resolved: bool
    reason: str
    fail_to_pass: int = 0
    """How many of them did what they should in the last run."""
    pass_to_pass: int = 0
    caught: bool = False
    """What is real passed, and so did decoys."""
    guarded: bool = True
    """There are decoys for each bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run: the tests that were right, those that were wrong, and the decoys that passed."""

    right: frozenset[str]
    wrong: Mapping[str, str]
    """With what became of them."""
    fooled: Mapping[str, Decoy] = field(default_factory=dict[str, Decoy])


def judge_run(
    outcomes: Mapping[str, Outcome],
    saws: Mapping[str, Saw],
    decoys: Sequence[Decoy],
    tests: Sequence[str],
) -> Judged:
    """Each test has to pass; with a decoy it has to fail there, and show the true value."""
    decoy_of = {test: decoy for decoy in decoys for test in decoy.sees}
    spoiled = frozenset(test for decoy in decoys for test in decoy.spoils)
    right: set[str] = set()
    wrong: dict[str, str] = {}
    fooled: dict[str, Decoy] = {}
    for test in tests:
        outcome, decoy = outcomes.get(test), decoy_of.get(test)
        if test in spoiled or (decoy is None and outcome == "passed"):
            right.add(test)
        elif decoy and outcome == "passed":
            fooled[test] = decoy
        elif decoy and outcome == "failed" and shows_truth(decoy, test, saws.get(test)):
            right.add(test)
        else:
            wrong[test] = outcome or "not reported"
    return Judged(right=frozenset(right), wrong=wrong, fooled=fooled)


def shows_truth(decoy: Decoy, test: str, saw: Saw | None) -> bool:
    """True if a test has failed where its decoy is and not because of anything else."""
    true = decoy.sees[test]
    if saw is None or saw.site != decoy.site:
        return False
    return is_same_at(saw.site, saw.sides[decoy.side], true)


def is_same_at(site: str, one: str, other: str) -> bool:
    """Whether two texts of `runner.literal` are equal as the comparison at a site has it."""
    return (_are_same_items if site.endswith(ITEMS) else is_same)(one, other)


def is_same(one: str, other: str) -> bool:
    """Whether two texts of `runner.literal` are of one value; numbers may differ by 1e-5 of it."""
    if one == other:
        return True
    try:
        return _is_near(ast.literal_eval(one), ast.literal_eval(other))
    except (ValueError, TypeError, ArithmeticError, SyntaxError, RecursionError, MemoryError):
        return False


def _are_same_items(one: str, other: str) -> bool:
    """Whether two texts are of lists with the same items, each as often, in any order."""
    if one == other:
        return True
    try:
        found: object = ast.literal_eval(one)
        wanted: object = ast.literal_eval(other)
        return _pair_off(found, wanted)
    except (ValueError, TypeError, ArithmeticError, SyntaxError, RecursionError, MemoryError):
        return False


def _pair_off(found: object, wanted: object) -> bool:
    if not isinstance(found, list) or not isinstance(wanted, list):
        return False
    items, left = cast("list[object]", found), cast("list[object]", wanted)
    for item in items if len(items) == len(left) else ():
        place = next((i for i, rest in enumerate(left) if _is_near(item, rest)), None)
        if place is None:
            return False
        del left[place]
    return not left


def _is_near(one: object, other: object) -> bool:
    match one, other:
        case float() | int(), float() | int():
            # Above that a float is a whole number always, and written like one.
            are_ints = float not in (type(one), type(other))
            exact = are_ints and min(abs(one), abs(other)) < 1 << 53
            near = math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_TINY)
            return one == other if exact else near
        case (list() | tuple(), list() | tuple()):
            left, right = cast("Sequence[object]", one), cast("Sequence[object]", other)
            same = isinstance(one, list) is isinstance(other, list) and len(left) == len(right)
            return same and all(map(_is_near, left, right))
        case dict(), dict():
            before = cast("Mapping[object, object]", one)
            after = cast("Mapping[object, object]", other)
            same = before.keys() == after.keys()
            return same and all(_is_near(before[key], after[key]) for key in before)
        case set(), set():
            members, rest = cast("set[object]", one), cast("set[object]", other)
            same = len(members) == len(rest)
            return same and all(any(_is_near(a, b) for b in rest) for a in members)
        case _:
            return one == other


def is_decided(runs: Sequence[Judged]) -> bool:
    """True if decoys have passed, and each of their tests as it is too."""
    fooled = {test for run in runs for test in run.fooled}
    return bool(fooled) and fooled <= {test for run in runs for test in run.right}


def verdict_of(
    runs: Sequence[Judged],
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    *,
    guarded: bool,
) -> Verdict:
    """The verdict by the runs that there were; the first with a wrong test was the last one."""
    last = runs[-1]
    reasons = [
        f"{len(tests)} {what}: {', '.join(tests[:_MOST_TOLD])}"
        for what, tests in (
            ("still failing", _tell_tests(fail_to_pass, last.wrong)),
            ("now failing", _tell_tests(pass_to_pass, last.wrong)),
        )
        if tests
    ]
    if not fail_to_pass:
        reasons.append("the task names no test that has to pass")
    fooled = {test: decoy for run in runs for test, decoy in run.fooled.items()}
    if fooled and not last.wrong:
        test, decoy = next(iter(fooled.items()))
        reasons = [
            f"{len(fooled)} tests pass with a wrong expected value too, so that passing proves "
            f"nothing: {test} with {decoy.to:.80} on line {decoy.place[0]} of {decoy.file}"
        ]
    passed = last.right | last.fooled.keys()
    return Verdict(
        resolved=not reasons,
        reason="; ".join(reasons) or "every expected test passed",
        fail_to_pass=len(passed.intersection(fail_to_pass)),
        pass_to_pass=len(passed.intersection(pass_to_pass)),
        caught=bool(fooled) and not last.wrong,
        guarded=guarded,
    )


def _tell_tests(tests: Sequence[str], wrong: Mapping[str, str]) -> list[str]:
    return [f"{test} ({wrong[test]})" for test in tests if test in wrong]
