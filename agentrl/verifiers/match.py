"""Is the answer this text?"""

from dataclasses import dataclass
from typing import Any, ClassVar

from agentrl.types import Task


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
        return isinstance(answer, str) and self._form(answer) == self._form(task.answer)

    def _form(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.casefold() if self.casefold else text
