"""Decoys: tests whose expected value is a wrong one, so that the right answer fails.

A grading runs the tests several times, each time in a fresh sandbox. In each run a decoy is drawn
or the real value; nothing in the sandbox says which. What passes without doing the work passes the
decoys too, and what fails them has to tell the true value, which exists nowhere in that sandbox.
"""

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import Field

from agentrl.config import Config
from agentrl.envs.swe.rewriting import Place, rewrite_tests

MOST_RUNS: Final = 6
_DECISIONS: Final = math.log2(1000)
"""Guesses that have to be right, each with one half at best: together once in 1000 times."""


class Decoy(Config):
    """A wrong expected value, and what a right program shows where it meets it."""

    file: str
    place: Place = Field(description="of the expected value, in the file as it is")
    to: str = Field(description="the expression that takes its place")
    site: str = Field(default="", description="of the comparison that fails then")
    side: int = Field(default=0, description="of the comparison's sides the program's")
    sees: Mapping[str, str] = Field(
        description="the tests that fail then, each with the true value as the program shows it"
    )
    spoils: tuple[str, ...] = Field(
        default=(), description="tests that are given another input by it and prove nothing then"
    )
    secret: int = Field(
        default=0, description="as how many decisions it counts to show the true value unknown"
    )


def num_runs(bugs: Sequence[Sequence[Decoy]]) -> int:
    """How many runs it takes until no guess can pay.

    For each decoy one has to decide in which runs it is there, and in one run at least what the
    true value is. A clock tells which run it is, so it helps that not all ways are drawn.

    Args:
        bugs: the decoys that decide about each bug.

    Returns:
        0 if `MOST_RUNS` are not enough.
    """

    def enough(runs: int, decoys: Sequence[Decoy]) -> bool:
        where = math.log2(_num_ways(runs))
        chosen = disjoint(sorted(decoys, key=lambda decoy: -decoy.secret))
        return sum(where + decoy.secret for decoy in chosen) >= _DECISIONS

    for runs in range(2, MOST_RUNS + 1):
        if all(enough(runs, decoys) for decoys in bugs):
            return runs
    return 0


def _num_ways(runs: int) -> int:
    """In how many ways a decoy can be in some of the runs and out of others."""
    return (1 << runs) - 2


def disjoint(decoys: Sequence[Decoy]) -> list[Decoy]:
    """The first decoys of which no two meet in a test or at a place."""
    chosen: list[Decoy] = []
    taken: set[object] = set()
    for decoy in decoys:
        meets = {*decoy.sees, *decoy.spoils, (decoy.file, decoy.place)}
        if not meets & taken:
            taken |= meets
            chosen.append(decoy)
    return chosen


def draw_runs(
    bugs: Sequence[Sequence[Decoy]], others: Sequence[Decoy], rng: random.Random
) -> list[list[Decoy]]:
    """The decoys of each run, each in at least one run and left out of at least one.

    Args:
        bugs: the decoys that decide about each bug: as many of them as go together are drawn.
        others: of tests that pass anyhow, which have to go on doing so.
        rng: draws.
    """
    runs: list[list[Decoy]] = [[] for _ in range(num_runs(bugs))]
    if not runs:
        return []
    # What is hard to guess first, and of each bug one before the second of any.
    ranked = [sorted(found, key=lambda d: (-d.secret, rng.random())) for found in bugs]
    turns = [decoy for turn in itertools.zip_longest(*ranked) for decoy in turn if decoy]
    for decoy in disjoint([*turns, *rng.sample([*others], len(others))]):
        drawn = rng.randint(1, _num_ways(len(runs)))
        for number, run in enumerate(runs):
            if drawn >> number & 1:
                run.append(decoy)
    return runs


def rewrite_files(
    texts: Mapping[str, str], decoys: Sequence[Decoy], *, by_log: bool = False
) -> dict[str, str]:
    """Test files and what they read as a run has them, by name; see `rewriting.rewrite_tests`."""
    changes: dict[str, dict[Place, str]] = defaultdict(dict)
    for decoy in decoys:
        changes[decoy.file][decoy.place] = decoy.to
    made = {f: _replaced(text, changes[f]) for f, text in texts.items() if not f.endswith(".py")}
    tests = {f: text for f, text in texts.items() if f not in made}
    return made | {f: rewrite_tests(t, changes[f], by_log=by_log) for f, t in tests.items()}


def _replaced(text: str, changes: Mapping[Place, str]) -> str:
    """A file of data with other values; the columns of their places count from its beginning."""
    for place in sorted(changes, reverse=True):
        text = text[: place[1]] + changes[place] + text[place[3] :]
    return text
