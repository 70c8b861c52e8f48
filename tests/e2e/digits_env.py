"""An environment in which even random tokens earn different rewards; ten tasks, so epochs end."""

from agentrl.envs import ToolEnv
from agentrl.types import Score, Task


class Digits(ToolEnv):
    system = "Say digits."
    max_turns = 2
    tasks = [Task(prompt=f"Task {i}", answer=i) for i in range(10)]  # noqa: RUF012

    def reply(self, text: str) -> str | None:
        return "More." if len(text) % 2 else None

    def score(self, answer: str) -> Score:
        return Score(value=min(1.0, sum(c.isalpha() for c in answer) / 40))
