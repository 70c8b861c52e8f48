"""Which episode of a run it is, and the seeds that follow from that: never from time or order."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

Purpose = Literal["train", "eval", "demonstration"]
_DIGITS: Final[Mapping[Purpose, int]] = {"train": 0, "eval": 1, "demonstration": 2}
_PLACES: Final = 10**9
"""More groups than a step ever has."""
_TURN_STRIDE: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeKey:
    """The identity of one try of one episode: its id and its seed follow from it."""

    run: int
    """The run's seed."""
    purpose: Purpose
    step: int
    group: int
    """Number of its group, unique in the run: the step, a digit for the purpose, and nine digits
    for the group's place in that step."""
    member: int
    attempt: int

    @classmethod
    def first(cls, *, run: int, step: int, place: int, purpose: Purpose = "train") -> Self:
        """The first try of the first member of the group at a place of a step."""
        group = (10 * step + _DIGITS[purpose]) * _PLACES + place
        return cls(run=run, purpose=purpose, step=step, group=group, member=0, attempt=0)

    def of_try(self, member: int, attempt: int) -> Self:
        """The same group's identity of another member and attempt."""
        return type(self)(
            run=self.run,
            purpose=self.purpose,
            step=self.step,
            group=self.group,
            member=member,
            attempt=attempt,
        )

    @property
    def id(self) -> str:
        """Unique in the run: `<purpose>-s<step>-g<place>-m<member>-a<attempt>`."""
        place = self.group % _PLACES
        return f"{self.purpose}-s{self.step}-g{place}-m{self.member}-a{self.attempt}"

    def seed(self, task: str) -> int:
        """The seed of the episode that plays the task of this id."""
        place = self.group % _PLACES
        return derive_seed(
            self.run, self.purpose, self.step, task, place, self.member, self.attempt
        )


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a turn of the episode with this seed, so that a turn can be drawn again."""
    return (seed + _TURN_STRIDE * (turn + 1)) % 2**63


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from the parts, for example (run seed, "order", number of the environment).

    Parts are length-prefixed, so ("a", "bc") and ("ab", "c") differ.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little") >> 1
