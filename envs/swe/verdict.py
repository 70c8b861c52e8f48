"""What the runs of a patch come to: right, wrong, or caught at passing decoys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agentrl.envs.swe.decoys import Decoy
from agentrl.envs.swe.report import Outcome, Saw
from agentrl.envs.swe.runner import ITEMS
from agentrl.verifiers.compare import same_literal

_MOST_TOLD: Final = 3


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
    return same_literal(one, other, in_any_order=site.endswith(ITEMS))


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
            ("still failing", _list_failed_tests_with_reasons(fail_to_pass, last.wrong)),
            ("now failing", _list_failed_tests_with_reasons(pass_to_pass, last.wrong)),
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


def _list_failed_tests_with_reasons(tests: Sequence[str], wrong: Mapping[str, str]) -> list[str]:
    return [f"{test} ({wrong[test]})" for test in tests if test in wrong]
