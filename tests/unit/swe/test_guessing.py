"""Code that remembers all that it saw in one run wins no more often than the bound says.

A play has the decoys' pairs of values in runs, and an attacker that knows everything but which of
the two is true: a clock that carries any number of bits from a run to the next.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pytest

from agentrl.envs.swe.decoys import Decoy, draw_runs

_PLAYS: Final = 4000
Draw: TypeAlias = Callable[[Sequence[Decoy], random.Random], Sequence[Sequence[Decoy]]]


@dataclass
class Attacker:
    """Says what it believes to be the value in whose place a decoy stands, in each run."""

    rng: random.Random
    sizes: Sequence[int]
    """How many values each decoy's could be."""
    said: dict[int, int] = field(default_factory=dict[int, int])

    def say(self, run: int, decoy: int, shown: int) -> int:
        raise NotImplementedError

    def guess(self, decoy: int, shown: int) -> int:
        """Another value than the one that is shown."""
        return self.rng.choice([v for v in range(self.sizes[decoy]) if v != shown])


class Rememberer(Attacker):
    """Believes the first run, and tells the others."""

    def say(self, run: int, decoy: int, shown: int) -> int:
        return self.said.setdefault(decoy, shown)


class Doubter(Attacker):
    """Believes nothing in the first run, and tells the others."""

    def say(self, run: int, decoy: int, shown: int) -> int:
        return self.said.setdefault(decoy, self.guess(decoy, shown))


class Tosser(Attacker):
    """Believes what a coin says, and tells the others."""

    def say(self, run: int, decoy: int, shown: int) -> int:
        guess = self.rng.choice([shown, self.guess(decoy, shown)])
        return self.said.setdefault(decoy, guess)


class Chooser(Attacker):
    """Decides by the value, the same way in every run."""

    def say(self, run: int, decoy: int, shown: int) -> int:
        return shown if shown % 2 else self.guess(decoy, shown)


class Waiter(Attacker):
    """Knows that the last run is real where the first was not, and guesses until then."""

    def say(self, run: int, decoy: int, shown: int) -> int:
        return shown if run else self.guess(decoy, shown)


def two_runs(decoys: Sequence[Decoy], rng: random.Random) -> Sequence[Sequence[Decoy]]:
    return draw_runs([decoys], decoys, rng)


def many_runs(decoys: Sequence[Decoy], rng: random.Random) -> Sequence[Sequence[Decoy]]:
    """Each decoy in some of six runs and out of others: 62 ways, which no memory has to know."""
    runs: list[list[Decoy]] = [[] for _ in range(6)]
    for decoy in decoys:
        drawn = rng.randint(1, (1 << len(runs)) - 2)
        for number, run in enumerate(runs):
            if drawn >> number & 1:
                run.append(decoy)
    return runs


def share_won(attacker: type[Attacker], secrets: Sequence[int], draw: Draw) -> float:
    rng = random.Random(f"{attacker} {secrets}")
    decoys = [
        Decoy(file="t.py", place=(i, 0, i, 1), to=f"{i}", sees={f"{i}": ""}, secret=secret)
        for i, secret in enumerate(secrets)
    ]
    won = sum(_is_won(attacker, decoys, draw, rng) for _ in range(_PLAYS))
    return won / _PLAYS


def _is_won(kind: type[Attacker], decoys: Sequence[Decoy], draw: Draw, rng: random.Random) -> bool:
    sizes = [2**decoy.secret + 1 for decoy in decoys]
    pairs = [rng.sample(range(size), 2) for size in sizes]
    attacker = kind(rng, sizes)
    for number, run in enumerate(draw(decoys, rng)):
        for i, (true, other) in enumerate(pairs):
            shown = other if decoys[i] in run else true
            if attacker.say(number, i, shown) != true:
                return False
    return True


@pytest.mark.parametrize("secrets", [[0], [0, 0], [2], [3], [0, 2], [2, 2], [0, 0, 0]], ids=str)
@pytest.mark.parametrize("attacker", [Rememberer, Doubter, Tosser, Chooser, Waiter])
def test_who_remembers_wins_no_more_than_the_bound(
    attacker: type[Attacker], secrets: list[int]
) -> None:
    bound = 2.0 ** -sum(max(secret, 1) for secret in secrets)
    chance = 4 * math.sqrt(bound * (1 - bound) / _PLAYS)
    assert share_won(attacker, secrets, two_runs) <= bound + chance


def test_it_would_win_where_the_first_of_many_runs_shows_what_is_true() -> None:
    for secrets in ([0, 0], [2, 2], [10, 10]):
        bound = 2.0 ** -sum(math.log2(62) + secret for secret in secrets)
        assert share_won(Rememberer, secrets, many_runs) > 0.2 > 100 * bound
