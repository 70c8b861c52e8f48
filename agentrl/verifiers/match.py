"""Is the answer this text?"""

from dataclasses import dataclass
from typing import Any, ClassVar

from agentrl.types import Task
from agentrl.verifiers.compare import same_text


@dataclass(frozen=True, slots=True)
class ExactMatch:
    """True if the answer is the reference, character for character.

    `strip` ignores white space around both, `casefold` the difference of upper and lower case.
    Characters that look alike are different; an answer that is no text never matches.
    """

    strip: bool = True
    casefold: bool = False

    in_process: ClassVar[bool] = True

    def score(self, task: Task, answer: Any) -> bool:
        """Compare `answer` with the task's.

        Raises:
            TypeError: the task's answer is no text.
        """
        if not isinstance(task.answer, str):
            raise TypeError(f"the task's answer is {task.answer!r}, expected a text")
        return same_text(answer, task.answer, strip=self.strip, casefold=self.casefold)
