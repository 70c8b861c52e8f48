"""`Allowance`: how much more is begun than is needed, and how long slow episodes are waited for."""

from collections.abc import Sequence
from statistics import median
from typing import Final

SLOW: Final = 2.0
"""A member that takes longer than so many medians of those that have ended may be left behind."""


class Allowance:
    """What a scheduler asks; a subclass may answer by what it has seen."""

    def __init__(self, *, surplus: int = 0, stragglers: float = 0.0) -> None:
        """The same for all steps and groups.

        Args:
            surplus: groups that are outstanding beyond those that are needed.
            stragglers: the share of a group's members that may be left behind.
        """
        self._surplus, self._stragglers = surplus, stragglers

    def surplus(self, step: int) -> int:
        """How many groups are outstanding beyond those that are needed, while this step is next.

        The first that are ready are trained on, so it needs a schedule that drops what is late.
        """
        return self._surplus

    def patience(self, ended_s: Sequence[float], members: int) -> float:
        """How long a member of a group may take, in seconds; it is stopped when that is over.

        It is asked each time that a member has ended. `ended_s` are the times that those took that
        have, of so many members; infinity is for ever.
        """
        may_stay = int(self._stragglers * members + 1e-6)  # 0.29 * 100 is below 29
        return SLOW * median(ended_s) if members - len(ended_s) <= may_stay else float("inf")
