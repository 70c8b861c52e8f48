"""Is the answer short?"""

from dataclasses import dataclass
from typing import Any, ClassVar

from agentrl.errors import ConfigError
from agentrl.types import Task


@dataclass(frozen=True, slots=True)
class LengthPenalty:
    """1 up to `max_chars` characters, then falling evenly to 0 at twice as many.

    No answer and an empty one give 0: silence is not brevity.
    """

    max_chars: int

    in_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.max_chars < 1:
            raise ConfigError(f"max_chars is {self.max_chars}, expected at least 1")

    def score(self, task: Task, answer: Any) -> float:
        """How well the length of `answer` keeps the limit."""
        length = len(answer.strip()) if isinstance(answer, str) else _length(answer)
        if length == 0:
            return 0.0
        return min(1.0, max(0.0, 2.0 - length / self.max_chars))


def _length(answer: object) -> int:
    return 0 if answer is None else len(str(answer))
