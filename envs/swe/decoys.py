"""Decoys: tests whose expected value is a wrong one, so that the right answer fails.

A grading runs the tests twice, each time in a fresh sandbox, with a decoy in one of the runs and
the real value in the other. What passes without doing the work passes the decoys too, and what
fails them has to tell the true value, which exists nowhere in that sandbox.

Only the first run has to be hard to guess, so that no clock, load or other trace that it leaves
helps the second one: time goes one way, and what is never right in the first run never comes to the
second. There a decoy whose true value is a secret is always present, as everyone may know: who says
that value without having it is right once in 2**secret times. Any other is there by the toss of a
coin, which code has to guess, whatever it knows. So for each decoy alone, and for all together,

    chance of a guess <= 2 ** -sum(max(secret, 1))

The second run shows the true values to code alone that has already told them.
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

RUNS: Final = 2
_DECISIONS: Final = math.log2(1000)
"""Guesses between two that have to be right: all together they are once in 1000 times."""
_HALF: Final = 0.5


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
        default=0, description="how many guesses between two it takes to show the true value"
    )


def is_guarded(bugs: Sequence[Sequence[Decoy]]) -> bool:
    """True if the decoys that decide about each bug leave nothing to guessing."""
    return bool(bugs) and _is_guessing_ruled_out(disjoint(_rank_decoys_across_bugs(bugs)), bugs)


def _rank_decoys_across_bugs(bugs: Sequence[Sequence[Decoy]]) -> list[Decoy]:
    """What is hard to guess first, and of each bug one before the second of any."""
    ranked = [sorted(found, key=lambda decoy: -decoy.secret) for found in bugs]
    return [decoy for turn in itertools.zip_longest(*ranked) for decoy in turn if decoy]


def _is_guessing_ruled_out(chosen: Sequence[Decoy], bugs: Sequence[Sequence[Decoy]]) -> bool:
    places = {(decoy.file, decoy.place) for decoy in chosen}
    return all(
        sum(max(d.secret, 1) for d in found if (d.file, d.place) in places) >= _DECISIONS
        for found in bugs
    )


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
    """The decoys of the two runs: each test has one at most, and is as it is in the other run.

    Args:
        bugs: the decoys that decide about each bug; they are guarded by them.
        others: all of them, those of tests too that have to go on passing.
        rng: draws.
    """
    ranked, rest = _rank_decoys_across_bugs(bugs), rng.sample([*others], len(others))
    # Any of a test's comparisons may have its decoy, where it need not be the best.
    chosen = disjoint(rng.sample(ranked, len(ranked)))
    if not _is_guessing_ruled_out(chosen, bugs):
        chosen = disjoint(ranked)
    first = [d for d in disjoint([*chosen, *rest]) if d.secret or rng.random() < _HALF]
    return [first, disjoint([*first, *rest])[len(first) :]]


def rewrite_files(
    texts: Mapping[str, str], decoys: Sequence[Decoy], *, by_log: bool = False
) -> dict[str, str]:
    """Test files and what they read as a run has them, by name; see `rewriting.rewrite_tests`."""
    changes: dict[str, dict[Place, str]] = defaultdict(dict)
    for decoy in decoys:
        changes[decoy.file][decoy.place] = decoy.to
    made = dict(texts)
    for file, text in texts.items():
        if file.endswith(".py"):
            made[file] = rewrite_tests(text, changes[file], by_log=by_log)
            continue
        for place in sorted(changes[file], reverse=True):  # columns count from the file's beginning
            made[file] = made[file][: place[1]] + changes[file][place] + made[file][place[3] :]
    return made
