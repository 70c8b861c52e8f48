"""`Breaker`: stops a run in which too many episodes cannot be scored, with a table of reasons."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from agentrl.errors import BreakerTripped
from agentrl.rollout.collected import PlayedGroup
from agentrl.types import Episode, Invalid

BREAKER_MIN_EPISODES: Final = 4
"""Fewer attempts than this say nothing about a share."""


class Breaker:
    """Watches the groups that are played; those that were taken count no more."""

    def __init__(self, *, members: int, attempts: int, max_invalid_share: float) -> None:
        self._members, self._attempts = members, attempts
        self._max_invalid_share = max_invalid_share
        self._groups: list[PlayedGroup] = []
        self._invalid: list[Episode] = []
        """Attempts at theirs, in the order of their ends."""

    def begin(self, group: PlayedGroup) -> None:
        """A group begins."""
        self._groups.append(group)

    def count_invalid_attempt(self, attempt: Episode) -> None:
        """An attempt had no score. Raises BreakerTripped where hardly any has one."""
        self._invalid.append(attempt)
        total = len(self._groups) * self._members
        if len(self._invalid) > max(BREAKER_MIN_EPISODES, self._attempts * total // 2):
            first = self._invalid[0]
            assert isinstance(first.outcome, Invalid)
            raise BreakerTripped(
                f"{len(self._invalid)} attempts at {total} episodes were invalid, first by the "
                f"{first.outcome.blame} in {first.id}:\n{_tabulate_reasons(self._invalid)}"
            )

    def take(self, groups: Sequence[PlayedGroup]) -> None:
        """These have ended. Raises BreakerTripped if too many of theirs stayed without a score."""
        self.forget(groups)
        played = [group for group in groups if group.left_out is None]
        invalid = self._invalid_of(played)
        total = len(played) * self._members
        scored = sum(len(g.episodes) + len(g.dropped) + (g.greedy is not None) for g in played)
        total -= sum(len(group.stopped) for group in played)
        if total - scored > self._max_invalid_share * total:
            raise BreakerTripped(
                f"{total - scored} of {total} episodes stayed without a score, at most a share "
                f"of {self._max_invalid_share:g} is allowed (rollout.max_invalid_share):\n"
                f"{_tabulate_reasons(invalid)}"
            )

    def forget(self, groups: Sequence[PlayedGroup]) -> None:
        """Let these count no more."""
        gone = {id(group) for group in groups}
        self._groups = [group for group in self._groups if id(group) not in gone]
        taken = {id(attempt) for attempt in self._invalid_of(groups)}
        self._invalid = [attempt for attempt in self._invalid if id(attempt) not in taken]

    def _invalid_of(self, groups: Sequence[PlayedGroup]) -> list[Episode]:
        return [episode for group in groups for episode in group.invalid]


def _tabulate_reasons(invalid: Sequence[Episode]) -> str:
    """A table of why episodes were invalid, the commonest first."""
    counts = Counter(
        (e.outcome.blame, e.outcome.reason) for e in invalid if isinstance(e.outcome, Invalid)
    )
    rows = [f"  {n:5d} x {blame}: {reason}" for (blame, reason), n in counts.most_common(8)]
    return "\n".join(rows)
