"""Is the answer this number?"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from agentrl.errors import ConfigError
from agentrl.types import Task
from agentrl.verifiers.compare import parse_number, same_number


@dataclass(frozen=True, slots=True)
class ExactNumber:
    """True if the answer is the reference number and nothing but a number.

    Compared without rounding: 0.5, .5, 5e-1 and 1/2 are equal, 0.33 and 1/3 are not. `tolerance` is
    the largest absolute difference that still counts as equal. White space around the number and
    thousands separators in their places are fine; words, units, currency and percent signs, two
    numbers, other bases and other digits than 0-9 are not. A number given by a tool (`finish(42)`)
    counts as well as text; a bool does not.
    """

    tolerance: float = 0.0

    in_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ConfigError(f"tolerance is {self.tolerance}, expected a finite number from 0")

    def score(self, task: Task, answer: Any) -> bool:
        """Compare `answer` with the task's.

        Raises:
            ValueError: the task's answer is no number.
        """
        reference = parse_number(task.answer)
        if reference is None:
            raise ValueError(f"the task's answer is {task.answer!r}, expected a number")
        return same_number(answer, reference, tolerance=self.tolerance)
