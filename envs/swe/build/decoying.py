"""From test files to decoys that a right program fails, and fails for their sake alone.

    wrong programs -> what they give -> candidates -> rounds: the suite with many at once -> decoys

The runs are somebody else's: the builder's on this machine, or an instance's in its sandbox.
"""

import ast
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from agentrl.envs.swe.build.data_files import bare, find_data_spots, written_as
from agentrl.envs.swe.build.other_values import other_value, secrecy, stands_in
from agentrl.envs.swe.build.spots import Spot, find_spots, is_literal
from agentrl.envs.swe.decoys import Decoy, disjoint, rewrite_files
from agentrl.envs.swe.report import Saw, SuiteReport, file_of, function_of
from agentrl.envs.swe.rewriting import Function
from agentrl.envs.swe.runner import MOST_TEXT, UNKNOWN, literal
from agentrl.envs.swe.verdict import is_same_at, judge_run

MOST_ROUNDS: Final = 24
_MOST_JOINT: Final = 20
_SHORT: Final = 3
_OPENED: Final = re.compile(r"[\w.]*[(\[{]")
"""The classes in a value's text."""
Observed: TypeAlias = Sequence[tuple[str, Saw]]
"""What wrong programs gave, each with the test file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A literal and what it might be turned into."""

    spot: Spot
    to: object
    text: str
    """As it stands in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A decoy, and for each of its tests the number of the comparison that fails by it."""

    decoy: Decoy
    counts: Mapping[str, int]
    wanted: Mapping[str, str]
    """What its tests expect with it, as they show it."""
    is_known: bool
    """Who has read the repository tells it from the true value."""


Search: TypeAlias = Generator[Sequence[Decoy], SuiteReport | None, list[Validated]]
"""Yields decoys, takes the report of a right program's suite with them; None: it came to no end."""


def search(
    texts: Mapping[str, str],
    tests: frozenset[str],
    observed: Observed,
    rng: random.Random,
    told: str,
    old: Mapping[str, str],
) -> Search:
    """The decoys of test files: each alone in its test, and then together.

    Args:
        texts: the test files by name, as they are, and what they read.
        tests: those that pass when the files are rewritten without decoys.
        observed: what wrong programs gave.
        rng: chooses.
        told: what stands in the repository as the agent finds it.
        old: the test files that it finds there.
    """
    text = "\n".join([*rewrite_files(texts, []).values(), told])
    values = _collect_literals_by_function(old)
    found: list[Validated] = []
    left = [*rounds(candidates(texts, observed, rng))]
    while left:
        chosen = left.pop()
        report = yield as_decoys(chosen)
        if report is not None and not report.broken:
            found += validated(chosen, report, tests, text, values)
        elif len(chosen) > 1:  # one of them breaks a file for all
            left += [chosen[::2], chosen[1::2]]
    going = {id(one.decoy): one for one in found}
    tried: set[int] = set()
    for _ in range(_MOST_JOINT):
        new = [one.decoy for key, one in going.items() if key not in tried]
        if not new:
            break
        together = disjoint(rng.sample(new, len(new)))
        report = yield together
        for decoy in misfits(together, report, [*tests]) if report else together:
            going.pop(id(decoy), None)
        tried.update(map(id, together))
    return [one for key, one in going.items() if key in tried]


def candidates(texts: Mapping[str, str], observed: Observed, rng: random.Random) -> list[Change]:
    """A wrong value for each literal that has one.

    Args:
        texts: the test files by name, as they are, and what they read.
        observed: what wrong programs gave.
        rng: chooses.
    """
    found: list[Change] = []
    tests = {file: text for file, text in texts.items() if file.endswith(".py")}
    in_tests = itertools.chain.from_iterable(itertools.starmap(find_spots, tests.items()))
    for spot in (*in_tests, *find_data_spots(texts, observed)):
        wrong = [*_list_wrong_values(spot, observed)]
        other = other_value(spot.value, wrong, spot.siblings, rng)
        if other is not None and (text := written_as(spot, other)):
            found.append(Change(spot=spot, to=other, text=text))
    rng.shuffle(found)
    return found


def _list_wrong_values(spot: Spot, observed: Observed) -> Iterator[object]:
    right = literal(spot.value)
    for file, saw in observed:
        side = spot.sites.get(saw.site)
        is_here = side is not None and file == spot.test_file and saw.sides[1 - side] == right
        if side is not None and is_here and is_literal(saw.sides[side]):
            yield ast.literal_eval(saw.sides[side])


def rounds(found: Sequence[Change]) -> Iterator[list[Change]]:
    """The candidates in rounds: one for each test, as far as that is known."""
    left = [*found]
    for _ in range(MOST_ROUNDS):
        taken: dict[tuple[str, str], set[str]] = defaultdict(set)
        chosen: list[Change] = []
        later: list[Change] = []
        for candidate in left:
            spot = candidate.spot
            cases = [taken[spot.test_file, name] for name in spot.users]
            if any(known & {spot.case, ""} if spot.case else known for known in cases):
                later.append(candidate)
                continue
            for known in cases:
                known.add(spot.case)
            chosen.append(candidate)
        if chosen:
            yield chosen
        left = later


def as_decoys(chosen: Sequence[Change]) -> list[Decoy]:
    """The candidates of a round as decoys of which nothing is known, to write the files by."""
    return [Decoy(file=c.spot.file, place=c.spot.place, to=c.text, sees={}) for c in chosen]


def _collect_literals_by_function(old: Mapping[str, str]) -> dict[tuple[str, str], set[str]]:
    """The literals of each function, by file and name."""
    return {
        (file, function.name): {
            ast.unparse(n) for n in ast.walk(function) if isinstance(n, ast.expr) and is_literal(n)
        }
        for file, text in old.items()
        for function in ast.walk(ast.parse(text))
        if isinstance(function, Function)
    }


def validated(
    chosen: Sequence[Change],
    report: SuiteReport,
    tests: frozenset[str],
    text: str,
    old: Mapping[tuple[str, str], set[str]],
) -> list[Validated]:
    """The candidates by which a right program has failed, as a round's report shows it.

    Args:
        chosen: the round.
        report: of the suite with a right program.
        tests: those that pass without decoys.
        text: all files; a value that stands in it twice is no secret.
        old: the literals that functions of test files have where the agent finds them.
    """
    by_user: dict[tuple[str, str], list[Change]] = defaultdict(list)
    for candidate in chosen:
        for name in candidate.spot.users:
            by_user[candidate.spot.test_file, name].append(candidate)
    found = {id(candidate): _Effects({}, [], []) for candidate in chosen}
    for test in tests:
        outcome, saw = report.outcomes.get(test), report.saws.get(test)
        if outcome == "passed":
            continue
        mine = by_user[file_of(test), function_of(test).rpartition("::")[2]]
        for candidate in [c for c in mine if not c.spot.case or test.endswith(f"[{c.spot.case}]")]:
            effects = found[id(candidate)]
            if saw and outcome == "failed" and _is_change_shown(candidate, saw):
                effects.shown[test] = saw
            elif outcome == "failed":
                effects.spoiled.append(test)
            else:
                effects.broken.append(test)
    made = (_validate_decoy(candidate, found[id(candidate)], text, old) for candidate in chosen)
    return [one for one in made if one is not None]


@dataclass(frozen=True, slots=True)
class _Effects:
    shown: dict[str, Saw]
    """Tests that fail and show the true value."""
    spoiled: list[str]
    """Tests that fail because the literal is what they give to the program."""
    broken: list[str]
    """Tests that come to another end."""


def _is_change_shown(candidate: Change, saw: Saw) -> bool:
    """True if the program's value and the expected one differ by the change and in nothing else."""
    spot = candidate.spot
    if saw.site not in spot.sites:
        return False
    side = spot.sites[saw.site]
    true, shown = saw.sides[side], saw.sides[1 - side]
    # Another repair's value may be written a bit longer.
    if UNKNOWN in (true, shown) or len(true) > MOST_TEXT // 2:
        return False
    if spot.written:  # the file may hold what the program is given too
        new, old = bare(candidate.to), bare(spot.value)
        is_only_that = true.replace(old, new) == shown or shown.replace(new, old) == true
        return true != shown and is_only_that
    if true == literal(spot.value):
        return True
    # In a call of `Fraction` and the like the literal is a part of what is shown. Where the classes
    # differ, values of other classes may be equal too.
    is_part = shown != literal(candidate.to)
    return is_part and true != shown and _OPENED.findall(true) == _OPENED.findall(shown)


def _validate_decoy(
    candidate: Change,
    effects: _Effects,
    text: str,
    old: Mapping[tuple[str, str], set[str]],
) -> Validated | None:
    """The decoy that a candidate makes."""
    spot, sites = candidate.spot, {saw.site for saw in effects.shown.values()}
    if effects.broken or len(sites) != 1:
        return None
    (site,) = sites
    side = spot.sites[site]
    others = text.replace(spot.written or repr(spot.value), "", 1)
    older = set[str]().union(*(old.get((spot.test_file, name), ()) for name in spot.users))
    secret = secrecy(spot.value, candidate.to, others)
    # A short one stands about by chance.
    told = [
        len(repr(spot.value)) > _SHORT and stands_in(others, value)
        for value in (spot.value, candidate.to)
    ]
    old_told = [repr(value) in older for value in (spot.value, candidate.to)]
    decoy = Decoy(
        file=spot.file,
        place=spot.place,
        to=candidate.text,
        site=site,
        side=side,
        sees={test: saw.sides[side] for test, saw in sorted(effects.shown.items())},
        spoils=tuple(sorted(effects.spoiled)),
        secret=secret,
    )
    return Validated(
        decoy=decoy,
        counts={test: saw.count for test, saw in effects.shown.items()},
        wanted={test: saw.sides[1 - side] for test, saw in effects.shown.items()},
        # Whoever knows a decoy with a secret for one is no wiser.
        is_known=any(t > o or (t < o and not secret) for t, o in (told, old_told)),
    )


def misfits(decoys: Sequence[Decoy], report: SuiteReport, tests: Sequence[str]) -> list[Decoy]:
    """The decoys of a run by which a right program would be judged wrong."""
    judged = judge_run(report.outcomes, report.saws, decoys, tests)
    bad: list[Decoy] = []
    for test in (*judged.wrong, *judged.fooled):
        mine = [decoy for decoy in decoys if test in decoy.sees]
        # A file of data may be read by any test.
        here = file_of(test)
        bad += mine or [d for d in decoys if d.file == here or not d.file.endswith(".py")]
    return bad


def deciding(
    decoys: Sequence[Validated], failing: Mapping[str, Saw | None], untold: frozenset[str]
) -> tuple[int, ...]:
    """The decoys, by number, that decide about a bug.

    They stand at the comparison that the bug does not let pass: what comes behind it may be right
    with the bug, for code that feigns that one. They want another value than the bug gives, by
    which its code would know them, and nothing else in the repository tells them from the true
    one. And the test is none that the issue tells of.

    Args:
        decoys: of the package.
        failing: the tests that fail by the bug, each with the comparison where it does.
        untold: those of them that the issue does not tell of.
    """
    return tuple(
        number
        for number, one in enumerate(decoys)
        if not one.is_known
        and untold.issuperset(one.decoy.sees.keys() & failing.keys())
        and any(
            _is_failure_at_decoy(one, test, failing[test])
            for test in one.decoy.sees.keys() & failing.keys() & untold
        )
    )


def _is_failure_at_decoy(one: Validated, test: str, saw: Saw | None) -> bool:
    """True if a test ends at a decoy's comparison, by neither the true value nor the decoy's."""
    if saw is None or (saw.site, saw.count) != (one.decoy.site, one.counts[test]):
        return False
    known = (one.decoy.sees[test], one.wanted[test])
    return not any(is_same_at(saw.site, saw.sides[one.decoy.side], value) for value in known)
